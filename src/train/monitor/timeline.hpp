// The timeline of a run (log.trace): what each rank does when, in the iterations that the deck
// names.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "deck/deck.hpp"
#include "device/timers.hpp"
#include "pipeline/schedule.hpp"
#include "report/metrics.hpp"
#include "report/runs/timeline.hpp"

namespace trireme::train {

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
  /// It has ended. After the last one of a range, or of the run, adds the range to trace.json in
  /// the run folder; on rank 0 returns the event that says so. A file that cannot be written is a
  /// warning. Collective over all ranks.
  std::optional<report::TraceEvent> end_iteration(std::int64_t iteration, bool of_run);

  void begin(const device::RangeInfo& range) override;
  void end() override;

  bool records() const { return recording_; }
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
