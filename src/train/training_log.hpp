// What a run tells of its iterations: loss and speed, timers, memory, the use of GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "comm/mpi/groups.hpp"
#include "core/clock.hpp"
#include "deck/deck.hpp"
#include "device/timers.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
#include "report/reporter.hpp"
#include "train/gpu_watch.hpp"
#include "train/run_state.hpp"
#include "train/step_result.hpp"

namespace trireme::train {

/// Sums up iterations and reports them where log.every says. All ranks have one and call it
/// together, for timers, memory and GPUs are measured on all; rank 0 alone has a reporter.
class TrainingLog {
 public:
  /// `reporter` may be null. All must outlive this. Collective over all ranks.
  TrainingLog(const deck::Deck& deck, const plan::Vocabulary& vocabulary, const plan::RunPlan& plan,
              comm::Groups& groups, device::Backend& backend, report::Reporter* reporter);

  /// Starts the clock of the first interval and, where the deck asks for it, the sampling of GPUs.
  /// Collective over all ranks.
  void start();
  /// Leaves `seconds` that have passed out of the interval's time.
  void exclude(double seconds) { interval_.watch.exclude(seconds); }
  /// Null where log.timers is off.
  device::Timers* timers() { return timers_ ? &*timers_ : nullptr; }

  /// Adds an iteration to the interval.
  void add(const StepResult& result);
  /// Reports the interval, of which `result` is the last iteration, and begins another;
  /// `parameter_norm` with log.norms. Collective over all ranks.
  void report(const StepResult& result, const RunState& state,
              std::optional<double> parameter_norm);
  /// Reports the use of GPUs since the last time. Collective over all ranks.
  void report_gpus(std::int64_t iteration);
  /// Reports the timer of `phase`, an evaluation or a save. Collective over all ranks.
  void report_timer(device::Phase phase, std::int64_t iteration);

 private:
  /// What has been summed since the last report.
  struct Interval {
    Stopwatch watch;
    double loss = 0.0, applied_loss = 0.0;  ///< sums of finite ones
    std::int64_t iterations = 0, samples = 0, applied = 0, skipped = 0, nan = 0;
  };

  /// Over the iterations whose update was applied, as Megatron-LM's; over all where none was.
  double mean_loss() const;
  report::TrainEvent train_event(const StepResult& result, const RunState& state) const;
  void report_memory(std::int64_t iteration);
  /// The timers of `phases`, as means over `iterations`.
  void report_timers(std::span<const device::Phase> phases, std::int64_t iteration,
                     std::int64_t iterations = 1);

  const deck::Deck& deck_;
  const plan::Vocabulary& vocabulary_;
  const plan::RunPlan& plan_;
  comm::Groups& groups_;
  device::Backend& backend_;
  report::Reporter* reporter_;
  std::optional<device::Timers> timers_;
  std::optional<GpuWatch> gpu_watch_;
  Interval interval_;
  bool memory_reported_ = false;
};

}  // namespace trireme::train
