// Runs read from their files, of Trireme and of Megatron-LM: their curves; runs next to each
// other (differences, tables, and charts); and timelines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "report/metrics.hpp"

namespace trireme::report {

// Megatron-LM's console log, of any version: its training lines, and the arguments and memory lines
// that speed and memory follow from.

/// A training line of any program; values that it does not have are absent.
struct TrainRow {
  std::int64_t iteration = 0;
  std::optional<double> loss, ms, tokens_per_second, tflops, mfu;
  std::optional<double> learning_rate, grad_norm, global_batch;
  std::optional<double> samples, tokens;  ///< consumed so far
  /// Loss and times are means of the iterations after this one, that of the line before or from
  /// which a start continued; absent where a log repeats iterations without saying from where.
  std::optional<std::int64_t> since = 0;
  /// False in a log's line without a loss, as Megatron-LM's where all updates were skipped. Where
  /// it is true an absent loss is one that is not finite.
  bool has_loss = true;
};

/// Reads a log line by line. Understands the training lines of Megatron-LM from v1.1 on, of
/// BigScience's Megatron-DeepSpeed and of this program, with other lines between them and
/// launchers' labels before them.
class MegatronLog {
 public:
  /// The training line in `line`, if it is one; of a truncated line the complete fields. Other
  /// lines are searched for arguments and memory.
  std::optional<TrainRow> take(std::string_view line);

  /// Peak bytes of the rank with the highest use ("max reserved" of Megatron-LM); 0 when unknown.
  double memory() const { return highest_ > 0 ? highest_ : reserved_; }

 private:
  void take_argument(std::string_view line);
  void take_vocabulary(std::string_view line);
  void take_memory(std::string_view line);
  void complete(TrainRow& row) const;

  // Arguments; 0 when unknown.
  double sequence_ = 0, layers_ = 0, hidden_ = 0, ffn_ = 0, vocab_ = 0, ranks_ = 0;
  double global_batch_ = 0;
  double reserved_ = 0, highest_ = 0;
  bool on_gpu_ = false;  ///< highest_ is of a GPU
};

// The curves of a run (training lines and evaluations, from metrics.jsonl or a console log), and
// tables with one row per run.

/// An evaluation of the validation split.
struct EvalRow {
  std::int64_t iteration = 0;
  std::optional<double> loss, samples, tokens;
};

/// Everything about a run that can be compared with other runs.
struct RunHistory {
  std::string name;  ///< the path, as the user gave it
  StartEvent start;  ///< the newest start; without a program where a log was read
  /// By ascending iteration. Iterations that a restart repeats appear once, with the newer values.
  std::vector<TrainRow> train;
  std::vector<EvalRow> validation;
  double memory = 0;           ///< bytes on the rank with the highest use; 0 when unknown
  std::filesystem::path deck;  ///< deck.yaml of a run folder; empty for other files
  bool is_log = false;         ///< a console log was read, whose losses have 7 digits
};

/// Reads a run folder, its metrics.jsonl or a console log of this program or Megatron-LM. Throws
/// IoError when it cannot be read.
RunHistory read_run(const std::filesystem::path& path);

/// A run in a row of a table; unknown values are absent.
struct RunSummary {
  std::string name;
  std::int64_t iterations = 0;                 ///< of the last training line; 0 without one
  std::optional<double> last_loss, best_loss;  ///< the last absent where that is not finite
  /// Of the training line whose time is the median.
  std::optional<double> ms, tokens_per_second, tflops, mfu;
  std::optional<double> memory;  ///< bytes on the rank with the highest use
};

/// The summary of a run.
RunSummary summarize(const RunHistory& run);

/// One row per run under a header. Text and Markdown round, show memory in GiB and MFU in percent,
/// and "-" for unknown values; CSV (RFC 4180) and JSON (an array of objects) have all digits, bytes
/// and fractions, and empty cells or null. Ends in a newline.
std::string to_table(const std::vector<RunSummary>& runs, TableFormat format);

// Line charts as SVG: a column of panels over one x axis, with axes, grid and legend. Readable on
// light and dark backgrounds: the colours follow the viewer's colour scheme.

/// A curve of a panel. A point whose y is not finite interrupts the line.
struct Series {
  std::size_t color = 0;                          ///< index of the curve's name in Chart::names
  std::vector<std::pair<double, double>> points;  ///< (x, y) by ascending x
  bool dots = false;                              ///< draws separate points instead of a line
};

struct Panel {
  std::string title;
  std::vector<Series> series;
  bool from_zero = false;    ///< the y axis begins at 0
  bool logarithmic = false;  ///< logarithmic y axis; values that are not positive are not drawn
};

struct Chart {
  std::vector<std::string> names;  ///< the legend, one entry for each color
  std::string x_label;
  std::vector<Panel> panels;
};

/// The chart as an SVG document of 900 points width. Lines have at most four points for each pixel
/// column: lowest and highest values are kept.
std::string to_svg(const Chart& chart);

/// Round values within [low, high] (1, 2 or 5 times a power of ten apart), about `count` of them.
/// Requires finite bounds, low < high.
std::vector<double> round_ticks(double low, double high, int count);

/// A tick as text: "0.0003", "15k", "1.5M", "300B".
std::string tick_label(double value);

// Runs compared: their curves as a chart or as CSV, and the differences of two of them.

/// The x axis of a plot.
enum class PlotAxis { iterations, samples, tokens };

/// Loss (training as lines, validation as dots), learning rate and throughput of `runs`; panels
/// without data are left out. Throws DataError when a run has no training lines, or does not say
/// what `axis` needs.
Chart plot_runs(const std::vector<RunHistory>& runs, PlotAxis axis, bool logarithmic_loss);

/// One row per training line and evaluation: run, kind (train or valid), iteration, samples,
/// tokens, loss, learning_rate, grad_norm, global_batch, ms, tokens_per_second, tflops, mfu.
/// Unknown values are empty.
std::string export_csv(const std::vector<RunHistory>& runs);

/// A deck key, or a property of the start, with its values in two runs.
struct ValueDifference {
  std::string name, a, b;
};

/// The training losses of two runs at the iterations that both report, where they are means of the
/// same iterations; absent ones are not finite. Losses of a log are compared with all rounded to
/// its digits.
struct LossDifference {
  std::size_t common = 0;                ///< iterations with a loss in both
  std::size_t other_means = 0;           ///< in addition: those of means of other iterations
  bool rounded = false;                  ///< to the 7 digits of a log
  std::int64_t first = 0, last = 0;      ///< of them
  std::optional<std::int64_t> diverged;  ///< the first iteration with different losses
  std::int64_t largest_at = 0;           ///< iteration of the largest difference
  double largest = 0;                    ///< |a - b| there, of finite losses
  std::optional<double> last_a, last_b;  ///< losses at `last`
};

struct RunDifference {
  std::string a, b;                         ///< the runs' names
  std::vector<ValueDifference> properties;  ///< program, version, device, layout, hosts
  std::vector<ValueDifference> keys;        ///< of the decks, except run.name and run.output
  bool programs = false;                    ///< both starts are known
  bool decks = false;                       ///< both decks are known
  /// Iterations from which the last starts resumed: the decks are theirs, and those of earlier
  /// starts are not kept.
  std::int64_t deck_since_a = 0, deck_since_b = 0;
  LossDifference loss;

  /// Whether decks and losses agree: where no loss can be compared they do not.
  bool same() const { return keys.empty() && loss.common > 0 && !loss.diverged; }
};

/// The differences of two runs. Throws DeckError when a deck cannot be read.
RunDifference compare_runs(const RunHistory& a, const RunHistory& b);

/// The differences as text. Lines end in newlines.
std::string to_text(const RunDifference& difference);

// Timelines: trace.json of a run, in the format of Chrome's trace viewer, which Perfetto
// (ui.perfetto.dev) opens; one event per line. A process is a rank, a thread one of its lanes.

/// Work of a rank. Times in milliseconds from the first recorded moment of rank 0's clock.
struct TraceSpan {
  int rank = 0;
  int lane = 0;  ///< 0: what the compute stream does; others overlap with it
  std::string name = {};
  std::int64_t iteration = 0;
  int micro_batch = -1, chunk = -1;  ///< negative: none
  double start_ms = 0, ms = 0;
  int rewinds = 0;  ///< to before a recorded iteration, so far
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
