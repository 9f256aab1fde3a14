// The curves of runs, of Trireme and of Megatron-LM.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
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
};

/// `rows` without those that a later restart repeats.
std::vector<TrainRow> without_repeated(const std::vector<TrainRow>& rows);

/// Reads a run folder, its metrics.jsonl or a console log of this program or Megatron-LM. Throws
/// IoError when it cannot be read.
RunHistory read_run(const std::filesystem::path& path);

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

/// One row per run under a header. Text and Markdown round, show memory in GiB and MFU in percent,
/// and "-" for unknown values; CSV (RFC 4180) and JSON (an array of objects) have all digits, bytes
/// and fractions, and empty cells or null. Ends in a newline.
std::string to_table(const std::vector<RunSummary>& runs, TableFormat format);

}  // namespace trireme::report
