// trireme-bench: how fast Trireme computes, as ratios to what the machine can do.
#include <array>
#include <string_view>

#include "app.hpp"
#include "bench/commands.hpp"

namespace trireme::bench {
namespace {

struct Command {
  std::string_view name;
  const char* help;
  ExitCode (*run)(int argc, char** argv);
};

constexpr std::array kCommands = {
    Command{"comm", "what ranks send each other, over MPI or NCCL; run it with mpirun", run_comm},
    Command{"gemm", "matrix products of GPTs against what the host or the GPU can do", run_gemm},
    Command{"kernels", "every operation of a GPT's training step", run_kernels},
    Command{"step", "whole training steps of a deck, and its memory against the plan", run_step},
};

void print_help() {
  fmt::print("Usage: trireme-bench COMMAND [options]\n\nCommands:\n");
  for (const Command& command : kCommands) fmt::print("  {:<9} {}\n", command.name, command.help);
  fmt::print("\n'trireme-bench COMMAND --help' lists the options of a command.\n");
}

ExitCode run(int argc, char** argv) {
  if (argc < 2) throw UsageError("a command is missing");
  const std::string_view word = argv[1];
  if (word == "--help" || word == "-h") {
    print_help();
    return ExitCode::success;
  }
  if (word == "--version") {
    print_version("trireme-bench");
    return ExitCode::success;
  }
  for (const Command& command : kCommands)
    if (command.name == word) return command.run(argc - 1, argv + 1);
  throw UsageError("unknown command '{}'", word);
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  return trireme::run_app("trireme-bench", argc, argv, trireme::bench::run);
}
