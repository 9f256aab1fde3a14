// What a run's metrics.jsonl says of it: how far it came, and the figures of a table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme::sweep {

/// A run in figures; those that its metrics do not give are absent.
struct Figures {
  bool started = false;              ///< there is a start event
  std::optional<int> exit_code;      ///< of the stop event, unless the run was started again since
  std::int64_t iteration = 0;        ///< the last one reported
  std::optional<double> loss;        ///< the last one reported
  std::optional<double> valid_loss;  ///< of the newest evaluation
  /// Medians over the training lines, without the first after each start (warm-up) where there are
  /// others.
  std::optional<double> ms;  ///< per iteration
  std::optional<double> samples_per_second;
  std::optional<double> tokens_per_second;
  std::optional<double> mfu;  ///< 0 to 1
  /// The most that a rank used: on its GPU, or else of the host's memory.
  std::optional<double> memory_bytes;
};

/// Reads the metrics of a run folder. A file that is not there, and lines that are no JSON objects
/// (the last one may be under way), count as nothing.
Figures read_figures(const std::filesystem::path& run_folder);

}  // namespace trireme::sweep
