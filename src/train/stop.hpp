// Why and when a run stops before its last iteration, and what its launcher is told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "comm/communicator.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "deck/batch_sizes.hpp"

namespace trireme::train {
/// Why the training loop ended.
enum class StopReason {
  none,             ///< the run continues
  finished,         ///< all iterations are done
  exit_interval,    ///< train.exit_interval
  kill_switch,      ///< the file train.kill_switch exists
  exit_duration,    ///< train.exit_duration
  time_limit,       ///< --time-limit
  signal,           ///< SIGUSR1, SIGTERM, SIGINT or SIGHUP
  corrupted,        ///< train.verify found wrong results of a GPU, a host or a link
  diverged,         ///< train.diverged_after, or weights that are not finite
  unreadable_data,  ///< a dataset was changed or cannot be read any more
  bad_data,         ///< a dataset holds what no vocabulary has
};

/// Zero where the deck or a person asked for the stop, 75 where the run should be queued again, 76
/// where that would not help, 77 where it would on other hosts.
constexpr ExitCode exit_code(StopReason reason) {
  switch (reason) {
    case StopReason::exit_duration:
    case StopReason::time_limit:
    case StopReason::signal:
      return ExitCode::stopped_early;
    case StopReason::corrupted:
      return ExitCode::corrupted;
    case StopReason::diverged:
      return ExitCode::diverged;
    case StopReason::unreadable_data:
      return ExitCode::io;
    case StopReason::bad_data:
      return ExitCode::data;
    case StopReason::none:
    case StopReason::finished:
    case StopReason::exit_interval:
    case StopReason::kill_switch:
      return ExitCode::success;
  }
  return ExitCode::internal;
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
    case StopReason::corrupted:
      return "silent data corruption";
    case StopReason::diverged:
      return "training diverged";
    case StopReason::unreadable_data:
      return "the training data cannot be read";
    case StopReason::bad_data:
      return "the training data is bad";
  }
  return "?";
}

/// The time after which an iteration has stalled, learned from the time of earlier ones.
class StepLimit {
 public:
  /// An iteration with `samples` took `seconds`. The first ones, in which algorithms are chosen,
  /// are not counted.
  void note(double seconds, std::int64_t samples);
  /// Of an iteration with `samples`: five times the median, 10 seconds at least; empty while too
  /// few iterations are known.
  std::optional<double> seconds(std::int64_t samples) const;

 private:
  static constexpr std::size_t kRemembered = 15;
  std::int64_t count_ = 0;
  std::deque<double> seconds_per_sample_;  ///< of the newest iterations
};

/// Signals, the kill switch, limits of time and of iterations: what any rank sees holds for all.
class StopConditions {
 public:
  /// `time_limit` is in seconds of `since_start`; `parameters`, those of the model, tell how long a
  /// save may take before there has been one. All must outlive this.
  StopConditions(const deck::Deck& deck, const deck::BatchSizes& batches, comm::Communicator& world,
                 const Stopwatch& since_start, std::optional<double> time_limit,
                 std::int64_t parameters);

  /// Tells how long an iteration and a save took.
  void note_step(double seconds) { longest_step_ = std::max(longest_step_, seconds); }
  void note_save(double seconds) { save_ = seconds; }

  /// Whether a run may start at all. Collective over all ranks, as is after_step(); both return the
  /// same on every rank, `none` to continue.
  StopReason before_start() const;
  /// Whether a signal has asked any rank to stop. Collective over all ranks, which return the same.
  bool signalled() const;
  /// Whether to stop after the iteration that took the run from `before` to `now`; `end` is where
  /// it ends anyway. `data` is the exit code of what is wrong with the next batch on this rank.
  StopReason after_step(const deck::Progress& before, const deck::Progress& now,
                        const deck::Progress& end, ExitCode data = ExitCode::success) const;

 private:
  bool sees_kill_switch() const;
  /// What one more iteration takes at most, its evaluation included.
  double next_iteration_seconds(const deck::Progress& before, const deck::Progress& now,
                                const deck::Progress& end) const;

  const deck::Deck& deck_;
  const deck::BatchSizes& batches_;
  comm::Communicator& world_;
  const Stopwatch& since_start_;
  std::optional<double> time_limit_;
  double longest_step_ = 0.0;  ///< seconds
  double save_;                ///< seconds that the last save took
};

}  // namespace trireme::train
