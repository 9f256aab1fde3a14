// What this machine can run, which part of it each run gets, and the processes of the runs.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::sweep {

/// The GPUs, cores and memory that this process may use.
struct Machine {
  std::vector<std::string> gpus;  ///< as CUDA_VISIBLE_DEVICES names them
  std::size_t gpu_bytes = 0;      ///< memory of the smallest
  int cores = 1;
  std::size_t host_bytes = 0;
};

/// The resources of this machine.
Machine this_machine();

/// What the ranks of a run need.
struct Need {
  int ranks = 1;
  std::size_t bytes = 0;  ///< planned peak of the rank with the highest
  bool on_gpus = false;
};

/// Why a run does not fit on this machine; nothing when it does. Each rank needs its own GPU or
/// core, unless `max_ranks` allows more (or fewer).
std::optional<std::string> why_unfit(const Machine& machine, const Need& need,
                                     std::optional<int> max_ranks);

/// Assigns GPUs to concurrent runs, each GPU to one at a time.
class GpuPool {
 public:
  explicit GpuPool(std::vector<std::string> gpus) : free_(std::move(gpus)) {}

  /// `count` free GPUs; nothing while fewer are free.
  std::optional<std::vector<std::string>> take(int count);
  void give_back(const std::vector<std::string>& gpus);

 private:
  std::vector<std::string> free_;
};

/// What to start, and where its output goes.
struct Command {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;  ///< in addition to this process's
  std::filesystem::path output;  ///< standard output and error are appended to it
};

/// A child process in its own process group, so that a terminal's Ctrl-C reaches this program
/// alone. When this program dies, even of SIGKILL, the child gets SIGTERM.
class Process {
 public:
  /// Starts the command. Throws IoError when the output cannot be opened or no process be made; a
  /// program that is not found ends with code 127.
  explicit Process(const Command& command);

  /// Sends a signal, to the process alone.
  void signal(int number) const;

  /// The exit code once it has ended: 128 + the signal's number when one killed it.
  std::optional<int> ended();

 private:
  pid_t pid_ = -1;
};

}  // namespace trireme::sweep
