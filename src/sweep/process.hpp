// A program that runs beside this one and does not outlive it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::sweep {

/// What to start, and where its output goes.
struct Command {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;  ///< beside what this one has
  std::filesystem::path output;  ///< standard output and error are appended to it
};

/// A child process in a process group of its own, so that a terminal's Ctrl-C reaches this program
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
