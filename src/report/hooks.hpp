// Commands of the deck (hooks) that run while training continues: in a child process with a time
// limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "deck/deck.hpp"

namespace trireme::report {

/// Runs the deck's hooks on rank 0, one at a time, in the order of their events, with `sh -c` in
/// the program's working folder; what they print goes to hooks.log in the run folder. Environment:
/// TRIREME_EVENT (checkpoint, stop or fault), TRIREME_RUN (the run folder), TRIREME_ITERATION, and
/// as far as they apply TRIREME_PATH (the checkpoint), TRIREME_REASON and TRIREME_EXIT_CODE. The
/// launcher's variables are removed: a program that a hook starts is no rank of this run.
class Hooks {
 public:
  /// `folder` is the run folder. With hooks.fault starts a process that outlives this one: it runs
  /// the hook if this process ends without end(), by whatever signal.
  Hooks(const deck::Hooks& commands, std::filesystem::path folder);
  /// Waits at most half a minute for hooks that run or wait; what then runs continues without this
  /// process.
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void checkpoint(std::int64_t iteration, const std::string& path);
  /// The run stopped: hooks.stop runs, and hooks.fault will not.
  void stop(std::int64_t iteration, const std::string& reason, int exit_code);
  /// The run ends by an error: hooks.fault runs.
  void fault(const std::string& reason, int exit_code);
  /// The newest iteration, which a fault names.
  void note(std::int64_t iteration);

  /// Starts the next hook if none runs. A message for each hook that has failed since the last
  /// call.
  std::vector<std::string> poll();

 private:
  struct Call {
    std::string event, command;
    std::map<std::string, std::string> environment;
  };

  void add(const std::string& event, const std::optional<std::string>& command,
           std::map<std::string, std::string> environment);
  /// Starts `script` with `environment` added to this process's; null `input` for no input.
  pid_t spawn(const std::string& script, const std::map<std::string, std::string>& environment,
              int input) const;
  /// Tells the process that waits for a fault.
  void tell_guard(const std::string& line);

  deck::Hooks commands_;
  std::filesystem::path folder_;
  std::deque<Call> waiting_;
  std::optional<Call> running_;
  pid_t child_ = 0;
  Stopwatch since_started_;  ///< of the one that runs
  int guard_ = -1;           ///< the pipe to the process that waits for a fault
  std::vector<std::string> failures_;
};

}  // namespace trireme::report
