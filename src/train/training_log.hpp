// What a run reports of its iterations: loss and speed; what it measures over its ranks: timers,
// memory, the use of GPUs; and their timeline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/clock.hpp"
#include "deck/deck.hpp"
#include "device/gpu_sampler.hpp"
#include "device/timers.hpp"
#include "pipeline/schedule.hpp"
#include "plan/run_plan.hpp"
#include "plan/search/layout_search.hpp"
#include "plan/setup.hpp"
#include "report/metrics.hpp"
#include "report/reporter.hpp"
#include "report/runs/run_history.hpp"
#include "train/run_state.hpp"

namespace trireme::train {

/// Samples the GPUs that the run uses, on the first rank of each node, into <run>/ranks/<host>.gpu.
/// A run on the host samples every GPU of its nodes.
class GpuWatch {
 public:
  /// A node without NVIDIA's library says so once, in its file and, with log.gpu_every, on standard
  /// error. The folder must exist. Collective over `world`.
  GpuWatch(const deck::Deck& deck, comm::MpiCommunicator& world);

  /// What the GPUs of all nodes did since the last call, on rank 0; the iteration is left to the
  /// caller. Collective over the world, though only the first rank of each node exchanges anything.
  report::GpuEvent gather();

 private:
  void start(const deck::Deck& deck, const std::vector<std::string>& bus_ids);

  std::unique_ptr<device::GpuSampler> sampler_;  ///< null where there is no library
  std::unique_ptr<comm::MpiCommunicator>
      leaders_;                     ///< the first ranks of the nodes; null elsewhere
  std::vector<std::string> hosts_;  ///< of `leaders_`
  int most_gpus_ = 0;               ///< on a node
};

/// The mean time of each of `phases` over `iterations`, taken from the timers of every rank: the
/// smallest and the largest among the ranks that ran it. Phases that no rank ran are left out; of
/// passes each rank's sum is told, too. The event's iteration is left to the caller. Collective
/// over `world`.
report::TimersEvent timers_event(device::Timers& timers, std::span<const device::Phase> phases,
                                 double iterations, comm::Communicator& world);

/// The memory that the ranks use now. Collective over the world; the iteration and the planned
/// bytes are left to the caller.
report::MemoryEvent memory_in_use(const device::Backend& backend, const comm::Groups& groups);

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
  /// Forgets the iterations since the last report, which the run has left.
  void restart_interval() { interval_ = {}; }
  /// Leaves `seconds` that have passed out of the interval's time.
  void exclude(double seconds) { interval_.watch.exclude(seconds); }
  /// Compares the steps of the second interval, the first without warm-up, with `expected` if that
  /// is calibrated; it must outlive this.
  void compare_with(const plan::ExpectedStep& expected) {
    if (expected.calibrated) expected_ = &expected;
  }
  /// Null where log.timers is off.
  device::Timers* timers() { return timers_ ? &*timers_ : nullptr; }

  /// Adds an iteration to the interval.
  void add(const StepResult& result);
  /// Whether iterations have not been reported.
  bool has_unreported() const { return interval_.iterations > 0; }
  /// Reports the interval and begins another; `parameter_norm` with log.norms. Collective over all
  /// ranks.
  void report(const RunState& state, std::optional<double> parameter_norm);
  /// Reports the use of GPUs since the last time. Collective over all ranks.
  void report_gpus(std::int64_t iteration);
  /// Reports the timer of `phase`, an evaluation or a save. Collective over all ranks.
  void report_timer(device::Phase phase, std::int64_t iteration);

 private:
  /// What has been summed since the last report.
  struct Interval {
    Stopwatch watch;
    double loss = 0.0, applied_loss = 0.0;                    ///< sums of finite ones
    double sentence_loss = 0.0, applied_sentence_loss = 0.0;  ///< of the same iterations
    std::int64_t iterations = 0, samples = 0, applied = 0, skipped = 0, nan = 0;
    StepResult last;
  };

  /// Over the iterations whose update was applied, as Megatron-LM's; over all where none was.
  double mean_loss(double sum, double applied_sum) const;
  report::TrainEvent train_event(const RunState& state) const;
  void report_memory(std::int64_t iteration);
  /// The timers of `phases`, as means over `iterations`; none where log.timers is off.
  report::TimersEvent report_timers(std::span<const device::Phase> phases, std::int64_t iteration,
                                    std::int64_t iterations = 1);
  void compare_with_expected(double ms, const report::TimersEvent& timers);

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
  const plan::ExpectedStep* expected_ = nullptr;  ///< null: nothing to compare, or compared
  int intervals_ = 0;
};

// ---- the timeline of a run (log.trace): what each rank does when, in the iterations that the
// deck names

/// Records ranges and the operations of communicators as pairs of events: on a GPU points of
/// streams, read when the recording ends, so that no rank waits. While no iteration is recorded
/// nothing listens.
class Timeline final : public device::RangeListener {
 public:
  /// Lets the groups' communicators but the world's tell of their operations. The backend must
  /// outlive this, and this the passes that use the groups.
  Timeline(const deck::Deck& deck, comm::Groups& groups, device::Backend& backend);
  ~Timeline() override;

  /// Iteration `iteration` begins, of this many micro-batches. Collective over all ranks: the first
  /// one of a range aligns the ranks' clocks.
  void begin_iteration(std::int64_t iteration, int micro_batches);
  /// It has ended. After the last one of a range, or with `ends`, adds the range, as far as it is
  /// recorded, to trace.json in the run folder; on rank 0 returns the event that says so. A file
  /// that cannot be written is a warning. Collective over all ranks.
  std::optional<report::TraceEvent> end_iteration(std::int64_t iteration, bool ends);

  void begin(const device::RangeInfo& range) override;
  void end() override;

  bool records() const { return recording_; }
  /// Calls `work` without recording: its events would become part of a CUDA graph that it captures.
  void pause(const std::function<void()>& work);
  /// Starts an operation that overlaps with the compute stream and records it until it is complete.
  /// `lane` is of lane().
  std::unique_ptr<comm::Request> follow(
      const char* name, int lane, const std::function<std::unique_ptr<comm::Request>()>& start);
  /// The number of the lane called `name`, from 1.
  int lane(const std::string& name);

 private:
  struct Span {
    device::RangeInfo range;
    int lane = 0;
    std::int64_t iteration = 0;
    std::unique_ptr<device::Event> begin, end;
  };
  class FollowedRequest;
  struct Lane {
    std::string name;
    std::unique_ptr<device::SideStream> stream;  ///< null on the host
  };

  std::unique_ptr<device::Event> now();
  void align_clocks();
  /// The spans in order, with times of rank 0's clock.
  std::vector<report::TraceSpan> resolve();
  report::TraceFigures figures(const std::vector<report::TraceSpan>& spans) const;
  std::optional<double> simulated_bubble(const std::vector<report::TraceSpan>& spans) const;
  void write(const std::string& lines, const report::TraceFigures& figures);

  const deck::Deck& deck_;
  comm::Groups& groups_;
  device::Backend& backend_;
  bool recording_ = false;
  std::int64_t iteration_ = 0, first_ = 0, last_ = 0;
  int rewinds_ = 0;  ///< to before iteration_
  int micro_batches_ = 1;
  std::unique_ptr<device::Event> base_;  ///< at base_ms_ on the clock of rank 0
  double base_ms_ = 0;
  double clock_error_ms_ = 0;                 ///< most by which base_ms_ can be wrong
  std::optional<double> origin_ms_;           ///< rank 0's clock at the first recorded moment
  std::vector<std::shared_ptr<Span>> spans_;  ///< requests may outlive the recording
  std::vector<Span*> open_;
  std::vector<Lane> lanes_;
  std::optional<std::uintmax_t> written_;  ///< bytes of trace.json before its last line
};

}  // namespace trireme::train
