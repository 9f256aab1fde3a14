// Runs next to each other: differences, tables, and charts.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/runs/run_history.hpp"

namespace trireme::report {

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

/// The training losses of two runs at the iterations that both report.
struct LossDifference {
  std::size_t common = 0;                ///< iterations with a loss in both
  std::int64_t first = 0, last = 0;      ///< of them
  std::optional<std::int64_t> diverged;  ///< the first iteration with different losses
  std::int64_t largest_at = 0;           ///< iteration of the largest difference
  double largest = 0;                    ///< |a - b| there
  double last_a = 0, last_b = 0;         ///< losses at `last`
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

  /// Whether decks and losses agree.
  bool same() const { return keys.empty() && !loss.diverged; }
};

/// The differences of two runs. Throws DeckError when a deck cannot be read.
RunDifference compare_runs(const RunHistory& a, const RunHistory& b);

/// The differences as text. Lines end in newlines.
std::string to_text(const RunDifference& difference);

}  // namespace trireme::report
