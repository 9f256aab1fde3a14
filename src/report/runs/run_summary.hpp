// Runs in a line each (ours by metrics.jsonl, others by their console logs), and tables of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/runs/megatron_log.hpp"

namespace trireme::report {

/// A run; what is not known is absent.
struct RunSummary {
  std::string name;
  std::int64_t iterations = 0;  ///< of the last training line; 0 without one
  std::optional<double> last_loss, best_loss;
  /// Of the training line whose time is the median.
  std::optional<double> ms, tokens_per_second, tflops, mfu;
  std::optional<double> memory;  ///< bytes of the fullest rank that tells
};

/// Sums up training lines in their order. Where iterations go back, a restart repeats them: what
/// it repeats counts once.
RunSummary summarize(const std::string& name, const std::vector<TrainRow>& rows);

/// Sums up a run folder, its metrics.jsonl or a log. Throws IoError when there is nothing to read.
RunSummary summarize(const std::filesystem::path& path);

enum class TableFormat { text, csv, markdown, json };

/// One row for each run under a line of names. Text and Markdown round, show memory in GiB and MFU
/// in percent, and "-" for what is not known; CSV (RFC 4180) and JSON (an array of objects) have
/// all digits, bytes and fractions, and nothing or null for it. Ends in a newline.
std::string to_table(const std::vector<RunSummary>& runs, TableFormat format);

}  // namespace trireme::report
