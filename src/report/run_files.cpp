#include "report/run_files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::report {
namespace {

/// The low `bytes` bytes of `value`, least significant first.
std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
  return out;
}

// -- Protocol-buffer fields: a key (field number and wire type), then the value ------------------

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
  return out;
}

std::string key(int field, WireType wire) {
  return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}

std::string field_varint(int field, std::int64_t value) {
  return key(field, WireType::varint) + varint(static_cast<std::uint64_t>(value));
}

std::string field_double(int field, double value) {
  return key(field, WireType::fixed64) + little_endian(std::bit_cast<std::uint64_t>(value), 8);
}

std::string field_float(int field, float value) {
  return key(field, WireType::fixed32) + little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

std::string field_bytes(int field, std::string_view value) {
  return key(field, WireType::bytes).append(varint(value.size())).append(value);
}

// -- Messages of TensorFlow's event.proto and summary.proto ---------------------------------------

constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr int kSessionLogStatus = 1, kSessionLogStart = 1;

/// Files of one process and second differ in a count, which the first goes without.
std::string new_file_name() {
  static std::atomic<int> made = 0;
  const int before = made++;
  char host[HOST_NAME_MAX + 1] = "localhost";
  ::gethostname(host, HOST_NAME_MAX);
  const std::string name = fmt::format("events.out.tfevents.{:010d}.{}.{}",
                                       static_cast<std::int64_t>(unix_time()), host, ::getpid());
  return before == 0 ? name : fmt::format("{}.{}", name, before);
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, Mode mode) : path_(path) {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error)
      throw IoError("cannot make folder '{}': {}", path.parent_path().string(), error.message());
  }
  const char* flags = mode == Mode::fresh ? "wbe" : mode == Mode::resume ? "abe" : "wbxe";
  file_.reset(std::fopen(path.c_str(), flags));
  if (!file_) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
}

OutputFile::~OutputFile() {
  try {
    if (file_) flush();
  } catch (const IoError&) {
    // A caller that must see the error calls flush() first.
  }
}

void OutputFile::write(std::string_view bytes) {
  constexpr std::size_t kBuffer = std::size_t{64} << 10;
  unwritten_ += bytes;
  if (unwritten_.size() >= kBuffer) flush();
}

void OutputFile::flush() {
  std::size_t done = 0;
  int reason = 0;
  while (done < unwritten_.size() && reason == 0) {
    const ssize_t put =
        ::write(::fileno(file_.get()), unwritten_.data() + done, unwritten_.size() - done);
    if (put > 0)
      done += static_cast<std::size_t>(put);
    else if (put == 0 || errno != EINTR)
      reason = put == 0 ? ENOSPC : errno;
  }
  unwritten_.erase(0, done);
  if (reason != 0) throw IoError("cannot write '{}': {}", path_.string(), std::strerror(reason));
}

void OutputFile::line(std::string_view text) {
  write(std::string(text) + '\n');
  flush();
}

// ---------------------------------------------------------------------------- TensorBoard

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t flush_every)
    : file_(folder / new_file_name(), OutputFile::Mode::exclusive), flush_every_(flush_every) {
  TRIREME_CHECK(flush_every >= 1, "flush every {} scalars", flush_every);
  record(field_double(kEventWallTime, unix_time()) +
         field_bytes(kEventFileVersion, "brain.Event:2"));
  flush();
}

void EventFile::begin_at(std::int64_t step, double time) {
  record(field_double(kEventWallTime, time) + field_varint(kEventStep, step) +
         field_bytes(kEventSessionLog, field_varint(kSessionLogStatus, kSessionLogStart)));
  flush();
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double value, double time) {
  const std::string point =
      field_bytes(kValueTag, tag) + field_float(kValueSimpleValue, static_cast<float>(value));
  record(field_double(kEventWallTime, time) + field_varint(kEventStep, step) +
         field_bytes(kEventSummary, field_bytes(kSummaryValue, point)));
  if (++unflushed_ >= flush_every_) flush();
}

void EventFile::flush() {
  file_.flush();
  unflushed_ = 0;
}

void EventFile::record(std::string_view event) {
  const std::string length = little_endian(event.size(), 8);
  // In one piece: a part of a record would stay without the rest.
  file_.write(fmt::format("{}{}{}{}", length, little_endian(masked_crc32c(length), 4), event,
                          little_endian(masked_crc32c(event), 4)));
}

namespace {

struct Metric {
  const char* name;
  const char* type;
  const char* help;
};

constexpr Metric kMetrics[] = {
    {"up", "gauge", "1 while the run trains, 0 after it has stopped."},
    {"exit_code", "gauge", "Exit code of a run that has stopped."},
    {"start_time_seconds", "gauge", "When the program started, in seconds since 1970."},
    {"last_event_time_seconds", "gauge", "When the newest values were written."},
    {"ranks", "gauge", "Ranks of the run."},
    {"parameters", "gauge", "Parameters of the model."},
    {"iterations", "gauge", "Iterations at the end of the run."},
    {"iteration", "counter", "Iterations done."},
    {"consumed_samples_total", "counter", "Samples trained on."},
    {"consumed_tokens_total", "counter", "Tokens trained on."},
    {"loss", "gauge", "Training loss."},
    {"sentence_loss", "gauge", "Training loss of BERT's sentence pairs."},
    {"evaluation_loss", "gauge", "Loss of an evaluation, by split."},
    {"evaluation_sentence_loss", "gauge", "Loss of BERT's sentence pairs, by split."},
    {"evaluation_sentence_accuracy_ratio", "gauge",
     "Share of BERT's sentence pairs that are classified right."},
    {"task_score", "gauge", "Metrics of evaluate.tasks."},
    {"gradient_norm", "gauge", "Norm of the gradient before clipping."},
    {"learning_rate", "gauge", "Learning rate."},
    {"loss_scale", "gauge", "Loss scale."},
    {"iteration_seconds", "gauge", "Time of an iteration."},
    {"tokens_per_second", "gauge", "Tokens per second."},
    {"model_tflops_per_rank", "gauge", "Model TFLOP/s per rank."},
    {"mfu_ratio", "gauge", "Model FLOPs utilization."},
    {"skipped_iterations_total", "counter", "Iterations without an update since the start."},
    {"nan_iterations_total", "counter", "Iterations whose loss was not finite since the start."},
    {"checkpoint_iteration", "gauge", "Iteration of the newest checkpoint."},
    {"checkpoint_bytes", "gauge", "Its size."},
    {"checkpoint_seconds", "gauge", "Time that its writing took."},
    {"memory_bytes", "gauge", "Memory of the rank with the highest use, by kind."},
    {"gpu_utilization_ratio", "gauge", "Share of time in which the GPU ran kernels."},
    {"gpu_memory_bytes", "gauge", "GPU memory in use."},
    {"gpu_temperature_celsius", "gauge", "GPU temperature."},
    {"gpu_power_watts", "gauge", "GPU power."},
};

}  // namespace

std::string prometheus_label(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text + '"';
}

PrometheusFile::PrometheusFile(std::filesystem::path path, std::string run)
    : path_(std::move(path)), run_("run=" + prometheus_label(run)) {}

void PrometheusFile::set(const std::string& name, double value, const std::string& labels) {
  if (std::isnan(value) && !name.ends_with("loss")) return;
  values_[name][labels] = value;
}

std::string PrometheusFile::text() const {
  const auto number = [](double value) {
    if (std::isnan(value)) return std::string("NaN");
    if (std::isinf(value)) return std::string(value > 0 ? "+Inf" : "-Inf");
    return fmt::format("{}", value);
  };
  std::string text;
  for (const Metric& metric : kMetrics) {
    const auto found = values_.find(metric.name);
    if (found == values_.end()) continue;
    text += fmt::format("# HELP trireme_{0} {1}\n# TYPE trireme_{0} {2}\n", metric.name,
                        metric.help, metric.type);
    for (const auto& [labels, value] : found->second)
      text += fmt::format("trireme_{}{{{}{}{}}} {}\n", metric.name, run_, labels.empty() ? "" : ",",
                          labels, number(value));
  }
  return text;
}

bool PrometheusFile::write(double time) {
  set("last_event_time_seconds", time);
  try {
    if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path());
    write_file_atomically(path_, text());
  } catch (const IoError&) {
    return false;
  } catch (const std::filesystem::filesystem_error&) {
    return false;
  }
  return true;
}

bool PrometheusFile::on(const StartEvent& event, double time) {
  values_.clear();
  set("up", 1);
  set("start_time_seconds", time);
  set("ranks", event.layout.ranks());
  set("parameters", static_cast<double>(event.parameters));
  set("iterations", static_cast<double>(event.length.iterations));
  set("iteration", static_cast<double>(event.iteration));
  set("skipped_iterations_total", 0);
  set("nan_iterations_total", 0);
  return write(time);
}

bool PrometheusFile::on(const RewindEvent& event, double time) {
  set("iterations", static_cast<double>(event.length.iterations));
  set("iteration", static_cast<double>(event.iteration));
  return write(time);
}

bool PrometheusFile::on(const TrainEvent& event, double time) {
  set("iteration", static_cast<double>(event.iteration));
  set("consumed_samples_total", static_cast<double>(event.consumed_samples));
  set("consumed_tokens_total", static_cast<double>(event.consumed_tokens));
  set("loss", event.loss);
  if (event.sentence_loss) set("sentence_loss", *event.sentence_loss);
  set("gradient_norm", event.grad_norm);
  set("learning_rate", event.learning_rate);
  set("loss_scale", event.loss_scale);
  set("iteration_seconds", event.ms / 1e3);
  set("tokens_per_second", event.tokens_per_second);
  set("model_tflops_per_rank", event.model_tflops_per_rank);
  if (event.mfu) set("mfu_ratio", *event.mfu);
  values_["skipped_iterations_total"][""] += static_cast<double>(event.skipped);
  values_["nan_iterations_total"][""] += static_cast<double>(event.nan);
  return write(time);
}

bool PrometheusFile::on(const EvalEvent& event, double time) {
  const std::string split = "split=" + prometheus_label(event.split);
  set("evaluation_loss", event.loss, split);
  if (event.sentence_loss) set("evaluation_sentence_loss", *event.sentence_loss, split);
  if (event.sentence_accuracy)
    set("evaluation_sentence_accuracy_ratio", *event.sentence_accuracy, split);
  return write(time);
}

bool PrometheusFile::on(const TaskEvent& event, double time) {
  for (const auto& [metric, value] : event.metrics)
    set("task_score", value,
        fmt::format("task={},metric={}", prometheus_label(event.task), prometheus_label(metric)));
  return write(time);
}

bool PrometheusFile::on(const CheckpointEvent& event, double time) {
  set("checkpoint_iteration", static_cast<double>(event.iteration));
  set("checkpoint_bytes", static_cast<double>(event.bytes));
  set("checkpoint_seconds", event.seconds);
  return write(time);
}

bool PrometheusFile::on(const MemoryEvent& event, double time) {
  set("memory_bytes", static_cast<double>(event.planned_bytes), "kind=\"planned\"");
  set("memory_bytes", static_cast<double>(event.resident_bytes), "kind=\"resident\"");
  set("memory_bytes", static_cast<double>(event.peak_bytes), "kind=\"peak\"");
  if (event.gpu_bytes > 0)
    set("memory_bytes", static_cast<double>(event.gpu_bytes), "kind=\"gpu\"");
  return write(time);
}

bool PrometheusFile::on(const GpuEvent& event, double time) {
  for (const GpuUse& gpu : event.gpus) {
    const std::string labels =
        fmt::format("host={},gpu=\"{}\"", prometheus_label(gpu.host), gpu.index);
    set("gpu_utilization_ratio", gpu.utilisation / 100, labels);
    set("gpu_memory_bytes", gpu.memory, labels);
    set("gpu_temperature_celsius", gpu.temperature, labels);
    set("gpu_power_watts", gpu.power, labels);
  }
  return write(time);
}

bool PrometheusFile::on(const StopEvent& event, double time) {
  set("up", 0);
  set("iteration", static_cast<double>(event.iteration));
  set("exit_code", event.exit_code);
  return write(time);
}

}  // namespace trireme::report
