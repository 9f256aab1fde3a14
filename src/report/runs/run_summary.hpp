// Runs in a line each (ours by metrics.jsonl, others by their console logs), and tables of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/runs/run_history.hpp"

namespace trireme::report {

/// A run in a row of a table; unknown values are absent.
struct RunSummary {
  std::string name;
  std::int64_t iterations = 0;  ///< of the last training line; 0 without one
  std::optional<double> last_loss, best_loss;
  /// Of the training line whose time is the median.
  std::optional<double> ms, tokens_per_second, tflops, mfu;
  std::optional<double> memory;  ///< bytes on the rank with the highest use
};

/// The summary of a run.
RunSummary summarize(const RunHistory& run);

enum class TableFormat { text, csv, markdown, json };

/// One row per run under a header. Text and Markdown round, show memory in GiB and MFU in percent,
/// and "-" for unknown values; CSV (RFC 4180) and JSON (an array of objects) have all digits, bytes
/// and fractions, and empty cells or null. Ends in a newline.
std::string to_table(const std::vector<RunSummary>& runs, TableFormat format);

}  // namespace trireme::report
