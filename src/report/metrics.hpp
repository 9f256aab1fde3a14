// The event stream of a run: metrics.jsonl, one JSON object per line, from which every other view
// (console, TensorBoard, reports) can be made again; and where the time of a run went.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

/// How the ranks are arranged.
struct RunLayout {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
  int ranks() const { return tensor * pipeline * data; }
};

/// Constants of the model.
struct ModelInfo {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t sequence = 0;
  std::int64_t vocab = 0;
  std::int64_t parameters_without_embeddings = 0;
  double flops_per_token = 0;  ///< by model::flops_per_token()
  std::string flops_formula;   ///< of that, for people
  bool recomputes = false;     ///< whole layers, in the backward pass
};

/// Where a run ends.
struct RunLength {
  std::int64_t iterations = 0;
  std::int64_t samples = 0;  ///< of all iterations
};

/// A program began or continued a run.
struct StartEvent {
  std::string program = {};
  std::string version = {};
  std::string command = {};                 ///< as it was typed
  std::string directory = {};               ///< where
  std::string deck = {};                    ///< the deck that was asked for, as it was typed
  std::vector<std::string> overrides = {};  ///< KEY=VALUE, in their order
  std::string device = {};                  ///< "host" or "cuda"
  RunLength length = {};
  RunLayout layout = {};
  std::string partition = {};           ///< transformer layers per stage: "2-2"
  std::vector<std::string> hosts = {};  ///< each host once
  std::vector<int> rank_hosts = {};     ///< each rank's among them
  std::int64_t parameters = 0;          ///< of the whole model, each logical parameter once
  ModelInfo model = {};
  std::int64_t iteration = 0;  ///< from which the run resumes; 0 when fresh
};

/// L2 norms of each layer's parameters, then of the embeddings, then of the final norm and output
/// projection: of the gradient before clipping, of the update, and of the parameters after it.
struct LayerNorms {
  std::vector<double> gradient = {}, update = {}, parameters = {};
};

/// Training since the previous TrainEvent, up to and including `iteration`.
struct TrainEvent {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t consumed_tokens = 0;
  /// Mean over the iterations since the last event whose update was applied, over all of them where
  /// none was; may be NaN.
  double loss = 0;
  /// The same of the sentence labels; absent without a sentence head.
  std::optional<double> sentence_loss = {};
  double grad_norm = 0;  ///< before clipping
  /// With log.norms: L2 norm of all weights after the iteration, and how many elements of its
  /// gradient were zero.
  std::optional<double> parameter_norm = {};
  std::optional<std::int64_t> gradient_zeros = {};
  /// With log.norms: the largest logit of the iteration.
  std::optional<double> largest_logit = {};
  /// With log.norms: layers, if the iteration's update was applied.
  std::optional<LayerNorms> layer_norms = {};
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

/// Training data was skipped (train.skip).
struct SkipEvent {
  std::int64_t iteration = 0;  ///< the next one, which takes the data that follows
  std::int64_t first = 0;      ///< the data was that of this iteration ...
  std::int64_t last = 0;       ///< ... to this one
  std::int64_t samples = 0;
};

/// train.spike made the run resume from an earlier checkpoint, with later data.
struct RewindEvent {
  std::int64_t iteration = 0;  ///< of that checkpoint
  std::int64_t from = 0;       ///< the iteration with the spike
  std::int64_t samples = 0;    ///< of training data that are skipped
  double lost_seconds = 0;     ///< of the iterations in between; set by the Reporter
  std::string path;            ///< of the checkpoint
  std::string reason;
  RunLength length = {};  ///< of the run now: another where batch.global has changed since
};

/// The loss over part of a split.
struct EvalEvent {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t consumed_tokens = 0;
  std::string split = {};  ///< "valid" or "test"
  double loss = 0;
  /// Of the sentence labels: the loss, and the share that the model predicts, 0 to 1; absent
  /// without a sentence head.
  std::optional<double> sentence_loss = {};
  std::optional<double> sentence_accuracy = {};
  bool at_end = false;  ///< of the run
};

/// The result of a task (evaluate.tasks).
struct TaskEvent {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t consumed_tokens = 0;
  std::string task = {};  ///< its name, with that of its file where several tasks have the name
  std::vector<std::pair<std::string, double>> metrics = {};  ///< the most important first
};

/// The time of one part of the work, over the ranks that do it.
struct TimerValue {
  std::string name = {};  ///< Megatron-LM's: "forward-compute"
  double min_ms = 0;
  double max_ms = 0;
};

/// Times since the last event of these timers: per iteration on average, or of the evaluation or
/// checkpoint just done.
struct TimersEvent {
  std::int64_t iteration = 0;
  std::vector<TimerValue> timers = {};
  /// Of an iteration's timers: what each rank computes in forward and backward passes, without what
  /// its host waits for other ranks there.
  std::vector<double> rank_ms = {};
};

/// A checkpoint was published.
struct CheckpointEvent {
  std::int64_t iteration = 0;
  std::string path = {};
  std::int64_t bytes = 0;
  double seconds = 0;
  /// For which training waited; unset where it waited for all of `seconds`.
  std::optional<double> stall_seconds = {};
  /// The part of `stall_seconds` that the next iteration's time contains.
  double update_wait_seconds = 0;
};

/// Bytes of one rank. On a GPU `allocated` is what the backend's buffers hold and `reserved` all
/// that is in use, libraries and other programs included; `max_reserved` is the same, for a GPU
/// does not tell its highest value. On the host they are the process's resident set (VmRSS, VmHWM)
/// and its address space (VmSize, VmPeak).
struct RankMemory {
  int rank = 0;
  std::int64_t allocated = 0;
  std::int64_t max_allocated = 0;
  std::int64_t reserved = 0;
  std::int64_t max_reserved = 0;
};

/// Memory of the rank with the highest use, and of the ranks of the first model replica.
struct MemoryEvent {
  std::int64_t iteration = 0;
  std::int64_t planned_bytes = 0;   ///< as `--plan` computed it
  std::int64_t resident_bytes = 0;  ///< now
  std::int64_t peak_bytes = 0;      ///< resident, since the program began
  std::int64_t gpu_bytes = 0;       ///< in use on the GPU, which is what is planned; 0 on the host
  std::vector<RankMemory> ranks = {};
  /// planned_bytes by purpose: "weights", "gradients", ...
  std::vector<std::pair<std::string, std::int64_t>> purposes = {};
};

/// What one GPU did since the last event: means of utilisation and power, the highest memory and
/// temperature. NaN where a GPU does not report a value.
struct GpuUse {
  std::string host = {};
  int index = 0;           ///< on its host, in the driver's order
  double utilisation = 0;  ///< percent of the time in which kernels ran
  double memory = 0;       ///< bytes in use, by anything
  double memory_total = 0;
  double temperature = 0;  ///< degrees Celsius
  double power = 0;        ///< watts
};

/// The GPUs of the run.
struct GpuEvent {
  std::int64_t iteration = 0;
  std::vector<GpuUse> gpus = {};
};

/// The timeline of some iterations was recorded (log.trace).
struct TraceEvent {
  std::int64_t iteration = 0;  ///< the last one
  std::int64_t first = 0;
  std::string path = {};
  double bubble = 0;  ///< share of the ranks' time between passes without one, 0 to 1
  std::optional<double> simulated_bubble = {};
};

/// A warning to the user: weights that are absurdly large, a run that diverged.
struct WarningEvent {
  std::int64_t iteration = 0;
  std::string message = {};
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
std::string json_line(const SkipEvent& event, double time);
std::string json_line(const RewindEvent& event, double time);
std::string json_line(const EvalEvent& event, double time);
std::string json_line(const TaskEvent& event, double time);
std::string json_line(const TimersEvent& event, double time);
std::string json_line(const CheckpointEvent& event, double time);
std::string json_line(const MemoryEvent& event, double time);
std::string json_line(const GpuEvent& event, double time);
std::string json_line(const TraceEvent& event, double time);
std::string json_line(const WarningEvent& event, double time);
std::string json_line(const StopEvent& event, double time);

/// Whether metrics.jsonl at `path` says that the run finished at `iteration`, its last evaluations
/// included. False when there is no such file.
bool finished_at(const std::filesystem::path& path, std::int64_t iteration);

/// Cuts metrics.jsonl back to a checkpoint: drops the first line whose `iteration` is past
/// `iteration` and all that follow, and a last line that was not written to its end. The file is
/// replaced atomically; a file that does not exist stays so. Throws DataError (file and line) when
/// a line that would be kept is not a JSON object, IoError.
void truncate_metrics_after(const std::filesystem::path& path, std::int64_t iteration);

// Where the time of a run went, over all its starts: useful iterations, iterations that a failure
// lost, start-up, checkpoints, the time between starts.
//
// metrics.jsonl is cut back to the checkpoint at each restart, so that the run's next start records
// what it cuts in `starts.jsonl`, a line for each start that has ended.

/// One start of a run. Times are in seconds, points in time since 1970.
struct RunStart {
  double began = 0.0;                ///< the start event
  double ended = 0.0;                ///< the last event
  std::int64_t first_iteration = 0;  ///< the iteration that it resumed from
  std::int64_t reached = 0;          ///< the last iteration in a training line
  std::int64_t lost_iterations = 0;  ///< that the next start repeated
  double start_up = 0.0;             ///< until the first iteration
  double useful = 0.0, lost = 0.0;   ///< of iterations
  double checkpoints = 0.0;          ///< for which training waited
  std::string cause;                 ///< the reason of the stop event, or "killed or lost a rank"
  std::optional<std::int64_t> exit_code;  ///< of the stop event

  bool operator==(const RunStart&) const = default;
};

/// The last start in the lines of a metrics.jsonl. The next one resumes from iteration `resumed`;
/// without it from the last checkpoint, or from where the start stopped with one. Empty when there
/// is none. Lines that are no JSON objects are passed over.
std::optional<RunStart> last_start(std::string_view metrics, std::optional<std::int64_t> resumed);

/// Appends the last start of `folder`/metrics.jsonl to `folder`/starts.jsonl, if there is one. For
/// a start that resumes from iteration `resumed`, before it cuts metrics.jsonl. Throws IoError.
void record_last_start(const std::filesystem::path& folder, std::int64_t resumed);

/// All starts of the run in `folder`, oldest first. Throws IoError, DataError.
std::vector<RunStart> read_starts(const std::filesystem::path& folder);

/// "goodput 93.1 % of 1.2 h: useful ..., lost ...": one line.
std::string goodput_line(const std::vector<RunStart>& starts);
/// That line, and a table of the causes.
std::string goodput_text(const std::vector<RunStart>& starts);
/// As one JSON object.
std::string goodput_json(const std::vector<RunStart>& starts);

}  // namespace trireme::report
