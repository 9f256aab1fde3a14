// What ends a run before its last iteration.
#pragma once

#include <algorithm>
#include <optional>

#include "comm/communicator.hpp"
#include "core/clock.hpp"
#include "deck/batch_sizes.hpp"
#include "train/stop.hpp"

namespace trireme::train {

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
  /// same on every rank, `none` to go on.
  StopReason before_start() const;
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
