// Megatron-LM's console log, of any version: its training lines, and the arguments and memory lines
// that speed and memory follow from.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme::report {

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

}  // namespace trireme::report
