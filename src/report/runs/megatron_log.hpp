// Megatron-LM's console log, of any version: its training lines, and what else tells of speed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme::report {

/// A training line, of whatever program; what it does not tell is absent.
struct TrainRow {
  std::int64_t iteration = 0;
  std::optional<double> loss, ms, tokens_per_second, tflops, mfu;
};

/// Reads a log line by line. Understands the training lines of Megatron-LM from v1.1 on, of
/// BigScience's Megatron-DeepSpeed and of this program; lines of other kinds may stand between
/// them, and launchers may have put labels before them.
class MegatronLog {
 public:
  /// The training line in `line`, if it is one. Of a line that was cut off the fields before the
  /// cut count. Other lines leave what they tell of the model and of memory.
  std::optional<TrainRow> take(std::string_view line);

  /// Bytes that the fullest rank uses: reserves, in Megatron-LM's words. 0 when it is not told.
  double memory() const { return fullest_ > 0 ? fullest_ : reserved_; }

 private:
  void take_argument(std::string_view line);
  void take_vocabulary(std::string_view line);
  void take_memory(std::string_view line);
  void complete(TrainRow& row, std::optional<double> global_batch) const;

  // Of the list of arguments, 0 when it is not there.
  double sequence_ = 0, layers_ = 0, hidden_ = 0, ffn_ = 0, vocab_ = 0, ranks_ = 0;
  double global_batch_ = 0;
  double reserved_ = 0, fullest_ = 0;
  bool on_gpu_ = false;  ///< fullest_ is of a GPU
};

}  // namespace trireme::report
