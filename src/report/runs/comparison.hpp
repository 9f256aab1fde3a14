// Runs compared: their curves as a chart or as CSV, and the differences of two of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/runs/run_history.hpp"
#include "report/runs/svg_chart.hpp"

namespace trireme::report {

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
  LossDifference loss;

  /// Whether decks and losses agree.
  bool same() const { return keys.empty() && !loss.diverged; }
};

/// The differences of two runs. Throws DeckError when a deck cannot be read.
RunDifference compare_runs(const RunHistory& a, const RunHistory& b);

/// The differences as text. Lines end in newlines.
std::string to_text(const RunDifference& difference);

}  // namespace trireme::report
