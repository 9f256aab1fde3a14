// An mpirun that still runs after its ranks have ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>

namespace trireme {

/// Watches an mpirun that this process has started: Open MPI 4.1's may hang after an abort.
class LauncherWatch {
 public:
  using Clock = std::chrono::steady_clock;
  /// The time that mpirun gets to end after its ranks.
  static constexpr std::chrono::seconds kTimeout{60};

  explicit LauncherWatch(pid_t launcher, Clock::duration timeout = kTimeout)
      : launcher_(launcher), timeout_(timeout) {}

  /// Whether ranks of the launcher on this host have ended, and none has run for the time-out. A
  /// rank that is stopped (SIGSTOP) does not run; while all are, the launcher does not hang. Never
  /// where another program than Open MPI's mpirun starts the ranks. Reads /proc once a second.
  bool hangs();

  /// Ends the launcher and all that it has started on this host, by SIGKILL.
  void kill() const;

 private:
  pid_t launcher_;
  Clock::duration timeout_;
  std::size_t most_ = 0;  ///< ranks at one time
  Clock::time_point next_look_{};
  std::optional<Clock::time_point> idle_since_;
};

}  // namespace trireme
