#include "report/prometheus.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::report {
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
    {"evaluation_loss", "gauge", "Loss of an evaluation, by split."},
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
  if (std::isnan(value) && name != "loss" && name != "evaluation_loss") return;
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

bool PrometheusFile::on(const TrainEvent& event, double time) {
  set("iteration", static_cast<double>(event.iteration));
  set("consumed_samples_total", static_cast<double>(event.consumed_samples));
  set("consumed_tokens_total", static_cast<double>(event.consumed_tokens));
  set("loss", event.loss);
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
  set("evaluation_loss", event.loss, "split=" + prometheus_label(event.split));
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
