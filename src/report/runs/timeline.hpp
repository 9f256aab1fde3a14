// Timelines: trace.json of a run, in the format of Chrome's trace viewer, which Perfetto
// (ui.perfetto.dev) opens; one event per line. A process is a rank, a thread one of its lanes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::report {

/// Work of a rank. Times in milliseconds from the first recorded moment of rank 0's clock.
struct TraceSpan {
  int rank = 0;
  int lane = 0;  ///< 0: what the compute stream does; others overlap with it
  std::string name = {};
  std::int64_t iteration = 0;
  int micro_batch = -1, chunk = -1;  ///< negative: none
  double start_ms = 0, ms = 0;
};

/// The names of the passes, whose time counts as busy.
inline constexpr std::string_view kPassNames[] = {"forward-compute", "backward-compute",
                                                  "input-gradient", "weight-gradient"};
bool is_pass(std::string_view name);

/// What the recording program knows of the whole trace: the last line of the file.
struct TraceFigures {
  std::int64_t first = 0, last = 0;  ///< iterations
  int ranks = 0;
  /// Share of the ranks' time, between the first and the last pass of an iteration, in which they
  /// run no pass, 0 to 1: measured, and as the simulator of schedules has it for the passes' mean
  /// times, without the time of messages.
  double bubble = 0;
  double clock_error_ms = 0;  ///< most by which times of different ranks can be off
  std::optional<double> simulated_bubble = {};
};

/// Lines of the file, each with its newline: the first, one that names a rank or one of its lanes,
/// one for a span, and the last.
std::string trace_head();
std::string trace_rank_line(int rank, const std::string& name);
std::string trace_lane_line(int rank, int lane, const std::string& name);
std::string trace_span_line(const TraceSpan& span);
std::string trace_tail(const TraceFigures& figures);

struct TraceLane {
  int rank = 0;
  int lane = 0;
  std::string name;
};

struct Trace {
  std::vector<std::string> ranks;  ///< the name of each
  std::vector<TraceLane> lanes;
  TraceFigures figures;
};

/// Reads the file line by line and calls `take` for each span; one that was cut short has what is
/// there. Throws IoError, DataError for a file of another kind.
Trace read_trace(const std::filesystem::path& path,
                 const std::function<void(const TraceSpan&)>& take);

/// What ranks do in the recorded iterations: a row for each rank with milliseconds per iteration by
/// kind of work, its share without a pass, then the bubbles. At most `most` ranks, those with the
/// most work. Lines end in newlines.
std::string trace_summary(const std::filesystem::path& path, std::size_t most = 64);

/// Every span: rank, iteration, lane, name, micro_batch, chunk, start_ms, ms.
void write_trace_csv(const std::filesystem::path& path,
                     const std::function<void(const std::string&)>& write);

}  // namespace trireme::report
