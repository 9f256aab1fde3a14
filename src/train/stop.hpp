// Why a run stops, and what its launcher is told.
#pragma once

#include "core/error.hpp"

namespace trireme::train {

/// Why the training loop ended.
enum class StopReason {
  none,             ///< it goes on
  finished,         ///< all iterations are done
  exit_interval,    ///< train.exit_interval
  kill_switch,      ///< the file train.kill_switch exists
  exit_duration,    ///< train.exit_duration
  time_limit,       ///< --time-limit
  signal,           ///< SIGUSR1, SIGTERM, SIGINT or SIGHUP
  diverged,         ///< train.diverged_after, or weights that are not finite
  unreadable_data,  ///< a dataset was changed or cannot be read any more
  bad_data,         ///< a dataset holds what no vocabulary has
};

/// Zero where the deck or a person asked for the stop, 75 where the run should be queued again, 76
/// where that would not help.
constexpr ExitCode exit_code(StopReason reason) {
  switch (reason) {
    case StopReason::exit_duration:
    case StopReason::time_limit:
    case StopReason::signal:
      return ExitCode::stopped_early;
    case StopReason::diverged:
      return ExitCode::diverged;
    case StopReason::unreadable_data:
      return ExitCode::io;
    case StopReason::bad_data:
      return ExitCode::data;
    default:
      return ExitCode::success;
  }
}

/// "finished", "the kill switch exists", ...
constexpr const char* describe(StopReason reason) {
  switch (reason) {
    case StopReason::none:
      return "running";
    case StopReason::finished:
      return "finished";
    case StopReason::exit_interval:
      return "train.exit_interval is reached";
    case StopReason::kill_switch:
      return "the kill switch exists";
    case StopReason::exit_duration:
      return "train.exit_duration is over";
    case StopReason::time_limit:
      return "the time limit is near";
    case StopReason::signal:
      return "a signal asked for it";
    case StopReason::diverged:
      return "training diverged";
    case StopReason::unreadable_data:
      return "the training data cannot be read";
    case StopReason::bad_data:
      return "the training data is bad";
  }
  return "?";
}

}  // namespace trireme::train
