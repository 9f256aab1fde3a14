// The event stream of a run: metrics.jsonl, one JSON object per line, from which every other view
// (console, TensorBoard, reports) can be made again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// How the ranks are arranged.
struct RunLayout {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
};

/// A program began or continued a run.
struct StartEvent {
  std::string program = {};
  std::string version = {};
  RunLayout layout = {};
  std::string partition = {};           ///< transformer layers per stage: "2-2"
  std::vector<std::string> hosts = {};  ///< each host once
  std::int64_t parameters = 0;          ///< of the whole model, each logical parameter once
};

/// Training since the previous TrainEvent, up to and including `iteration`.
struct TrainEvent {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t consumed_tokens = 0;
  double loss = 0;           ///< mean over the iterations since the last event; may be NaN
  double grad_norm = 0;      ///< before clipping
  double learning_rate = 0;  ///< after the schedule stepped: the next iteration's, as Megatron's
  double loss_scale = 1;
  std::int64_t global_batch = 0;
  double ms = 0;  ///< per iteration, mean since the last event
  double tokens_per_second = 0;
  double model_tflops_per_rank = 0;
  /// Share of the device's peak, 0 to 1; absent when no peak is known.
  std::optional<double> mfu = {};
  std::int64_t skipped = 0;  ///< iterations since the last event whose update was not applied
  std::int64_t nan = 0;      ///< iterations since the last event whose loss was not finite
};

/// The loss over part of a split.
struct EvalEvent {
  std::int64_t iteration = 0;
  std::string split = {};  ///< "valid" or "test"
  double loss = 0;
};

/// A checkpoint was published.
struct CheckpointEvent {
  std::int64_t iteration = 0;
  std::string path = {};
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// Memory of the rank that uses most.
struct MemoryEvent {
  std::int64_t iteration = 0;
  std::int64_t planned_bytes = 0;   ///< as `--plan` computed it
  std::int64_t resident_bytes = 0;  ///< now
  std::int64_t peak_bytes = 0;      ///< resident, since the program began
  std::int64_t gpu_bytes = 0;       ///< in use on the GPU, which is what is planned; 0 on the host
};

/// The run ended.
struct StopEvent {
  std::string reason = {};
  std::int64_t iteration = 0;
  int exit_code = 0;
};

/// exp(loss), the loss cut at 20 as Megatron does; NaN stays NaN.
double perplexity(double loss);

/// One line of metrics.jsonl without its newline: `kind`, `time` (seconds since 1970), then the
/// event's fields under their own names. Numbers that are not finite, and absent ones, are null.
std::string json_line(const StartEvent& event, double time);
std::string json_line(const TrainEvent& event, double time);
std::string json_line(const EvalEvent& event, double time);
std::string json_line(const CheckpointEvent& event, double time);
std::string json_line(const MemoryEvent& event, double time);
std::string json_line(const StopEvent& event, double time);

/// Cuts metrics.jsonl back to a checkpoint: drops the first line whose `iteration` is past
/// `iteration` and all that follow, and a last line that was not written to its end. The file is
/// replaced atomically; a file that does not exist stays so. Throws DataError (file and line) when
/// a line that would be kept is not a JSON object, IoError.
void truncate_metrics_after(const std::filesystem::path& path, std::int64_t iteration);

}  // namespace trireme::report
