// trireme-bench: speed, as a ratio to the peak of the machine.
#include <fmt/ranges.h>

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
    Command{"burn-in", "a GPU's GEMMs and memory for wrong results", run_burn_in},
    Command{"comm", "collectives between ranks, over MPI or NCCL; run it with mpirun", run_comm},
    Command{"gemm", "GEMMs of GPT models against the peak of the host or the GPU", run_gemm},
    Command{"kernels", "every operation of a GPT's training step", run_kernels},
    Command{"profile", "passes, optimizer, collectives and copies, for trireme-plan", run_profile},
    Command{"step", "whole training steps of a deck, and its memory against the plan", run_step},
};

void print_help() {
  fmt::print("Usage: trireme-bench COMMAND [options]\n\nCommands:\n");
  for (const Command& command : kCommands) fmt::print("  {:<9} {}\n", command.name, command.help);
  fmt::print("\n'trireme-bench COMMAND --help' lists the options of a command.\n");
}

std::vector<std::string_view> command_names() {
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) names.push_back(command.name);
  return names;
}

ExitCode run(int argc, char** argv) {
  if (argc < 2) throw UsageError("expected a command: {}", fmt::join(command_names(), ", "));
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
  throw UsageError("unknown command '{}': expected {}{}", word, fmt::join(command_names(), ", "),
                   did_you_mean(word, command_names()));
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  return trireme::run_app("trireme-bench", argc, argv, trireme::bench::run);
}
