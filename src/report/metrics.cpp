#include "report/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::report {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// The keys that every line begins with; milliseconds are as fine as `time` needs to be.
OrderedJson line_of(const char* kind, double time) {
  return {{"kind", kind}, {"time", std::round(time * 1e3) / 1e3}};
}

/// One line; bytes that are not UTF-8 (a path may hold them) become U+FFFD.
std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson to_json(const RunLength& length) {
  return {{"iterations", length.iterations}, {"samples", length.samples}};
}

}  // namespace

// The smaller of the two in this order keeps a NaN.
double perplexity(double loss) { return std::exp(std::min(loss, 20.0)); }

std::string json_line(const StartEvent& event, double time) {
  OrderedJson json = line_of("start", time);
  json["program"] = event.program;
  json["version"] = event.version;
  json["command"] = event.command;
  json["directory"] = event.directory;
  json["deck"] = event.deck;
  json["overrides"] = event.overrides;
  json["device"] = event.device;
  json["length"] = to_json(event.length);
  json["layout"] = {{"tensor", event.layout.tensor},
                    {"pipeline", event.layout.pipeline},
                    {"data", event.layout.data},
                    {"partition", event.partition}};
  json["hosts"] = event.hosts;
  json["rank_hosts"] = event.rank_hosts;
  json["parameters"] = event.parameters;
  json["model"] = {{"layers", event.model.layers},
                   {"hidden", event.model.hidden},
                   {"sequence", event.model.sequence},
                   {"vocab", event.model.vocab},
                   {"parameters_without_embeddings", event.model.parameters_without_embeddings},
                   {"flops_per_token", event.model.flops_per_token},
                   {"flops_formula", event.model.flops_formula},
                   {"recomputes", event.model.recomputes}};
  json["iteration"] = event.iteration;
  return dump(json);
}

std::string json_line(const TrainEvent& event, double time) {
  OrderedJson json = line_of("train", time);
  json["iteration"] = event.iteration;
  json["consumed_samples"] = event.consumed_samples;
  json["consumed_tokens"] = event.consumed_tokens;
  json["loss"] = event.loss;
  if (event.sentence_loss) json["sentence_loss"] = *event.sentence_loss;
  json["grad_norm"] = event.grad_norm;
  if (event.parameter_norm) json["parameter_norm"] = *event.parameter_norm;
  if (event.gradient_zeros) json["gradient_zeros"] = *event.gradient_zeros;
  if (event.largest_logit) json["largest_logit"] = *event.largest_logit;
  if (event.layer_norms)
    json["layer_norms"] = {{"gradient", event.layer_norms->gradient},
                           {"update", event.layer_norms->update},
                           {"parameters", event.layer_norms->parameters}};
  json["learning_rate"] = event.learning_rate;
  json["loss_scale"] = event.loss_scale;
  json["global_batch"] = event.global_batch;
  json["ms"] = event.ms;
  json["tokens_per_second"] = event.tokens_per_second;
  json["model_tflops_per_rank"] = event.model_tflops_per_rank;
  json["mfu"] = event.mfu ? OrderedJson(*event.mfu) : OrderedJson(nullptr);
  json["skipped"] = event.skipped;
  json["nan"] = event.nan;
  return dump(json);
}

std::string json_line(const SkipEvent& event, double time) {
  OrderedJson json = line_of("skip", time);
  json["iteration"] = event.iteration;
  json["first"] = event.first;
  json["last"] = event.last;
  json["samples"] = event.samples;
  return dump(json);
}

std::string json_line(const RewindEvent& event, double time) {
  OrderedJson json = line_of("rewind", time);
  json["iteration"] = event.iteration;
  json["from"] = event.from;
  json["samples"] = event.samples;
  json["lost_seconds"] = event.lost_seconds;
  json["path"] = event.path;
  json["reason"] = event.reason;
  json["length"] = to_json(event.length);
  return dump(json);
}

std::string json_line(const EvalEvent& event, double time) {
  OrderedJson json = line_of("eval", time);
  json["iteration"] = event.iteration;
  json["consumed_samples"] = event.consumed_samples;
  json["consumed_tokens"] = event.consumed_tokens;
  json["split"] = event.split;
  json["loss"] = event.loss;
  json["perplexity"] = perplexity(event.loss);
  if (event.sentence_loss) json["sentence_loss"] = *event.sentence_loss;
  if (event.sentence_accuracy) json["sentence_accuracy"] = *event.sentence_accuracy;
  json["at_end"] = event.at_end;
  return dump(json);
}

std::string json_line(const TaskEvent& event, double time) {
  OrderedJson json = line_of("task", time);
  json["iteration"] = event.iteration;
  json["consumed_samples"] = event.consumed_samples;
  json["consumed_tokens"] = event.consumed_tokens;
  json["task"] = event.task;
  for (const auto& [name, value] : event.metrics) json[name] = value;
  return dump(json);
}

std::string json_line(const TimersEvent& event, double time) {
  OrderedJson json = line_of("timers", time);
  json["iteration"] = event.iteration;
  OrderedJson timers = OrderedJson::object();
  for (const TimerValue& timer : event.timers)
    timers[timer.name] = {{"min_ms", timer.min_ms}, {"max_ms", timer.max_ms}};
  json["timers"] = timers;
  if (!event.rank_ms.empty()) json["rank_ms"] = event.rank_ms;
  return dump(json);
}

std::string json_line(const CheckpointEvent& event, double time) {
  OrderedJson json = line_of("checkpoint", time);
  json["iteration"] = event.iteration;
  json["path"] = event.path;
  json["bytes"] = event.bytes;
  json["seconds"] = event.seconds;
  if (event.stall_seconds) json["stall_seconds"] = *event.stall_seconds;
  if (event.update_wait_seconds > 0) json["update_wait_seconds"] = event.update_wait_seconds;
  return dump(json);
}

std::string json_line(const MemoryEvent& event, double time) {
  OrderedJson json = line_of("memory", time);
  json["iteration"] = event.iteration;
  json["planned_bytes"] = event.planned_bytes;
  json["resident_bytes"] = event.resident_bytes;
  json["peak_bytes"] = event.peak_bytes;
  if (event.gpu_bytes > 0) json["gpu_bytes"] = event.gpu_bytes;
  OrderedJson ranks = OrderedJson::array();
  for (const RankMemory& rank : event.ranks)
    ranks.push_back({{"rank", rank.rank},
                     {"allocated", rank.allocated},
                     {"max_allocated", rank.max_allocated},
                     {"reserved", rank.reserved},
                     {"max_reserved", rank.max_reserved}});
  json["ranks"] = ranks;
  for (const auto& [purpose, bytes] : event.purposes) json["purposes"][purpose] = bytes;
  return dump(json);
}

std::string json_line(const TraceEvent& event, double time) {
  OrderedJson json = line_of("trace", time);
  json["iteration"] = event.iteration;
  json["first"] = event.first;
  json["path"] = event.path;
  json["bubble"] = event.bubble;
  if (event.simulated_bubble) json["simulated_bubble"] = *event.simulated_bubble;
  return dump(json);
}

std::string json_line(const GpuEvent& event, double time) {
  OrderedJson json = line_of("gpu", time);
  json["iteration"] = event.iteration;
  OrderedJson gpus = OrderedJson::array();
  for (const GpuUse& gpu : event.gpus)
    gpus.push_back({{"host", gpu.host},
                    {"index", gpu.index},
                    {"utilisation", gpu.utilisation},
                    {"memory", gpu.memory},
                    {"memory_total", gpu.memory_total},
                    {"temperature", gpu.temperature},
                    {"power", gpu.power}});
  json["gpus"] = gpus;
  return dump(json);
}

std::string json_line(const WarningEvent& event, double time) {
  OrderedJson json = line_of("warning", time);
  json["iteration"] = event.iteration;
  json["message"] = event.message;
  return dump(json);
}

std::string json_line(const StopEvent& event, double time) {
  OrderedJson json = line_of("stop", time);
  json["reason"] = event.reason;
  json["iteration"] = event.iteration;
  json["exit_code"] = event.exit_code;
  return dump(json);
}

bool finished_at(const std::filesystem::path& path, std::int64_t iteration) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"finished\"") == std::string::npos) continue;
    const OrderedJson event = OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object() && event.value("reason", "") == "finished" &&
        event.value("iteration", std::int64_t{-1}) == iteration)
      return true;
  }
  return false;
}

void truncate_metrics_after(const std::filesystem::path& path, std::int64_t iteration) {
  std::error_code unreadable;  // opening the file will say why
  if (!std::filesystem::exists(path, unreadable)) return;
  const std::string content = read_file(path);
  std::size_t kept = 0;
  for (int number = 1;; ++number) {
    const std::size_t end = content.find('\n', kept);
    if (end == std::string::npos) break;
    const OrderedJson line =
        OrderedJson::parse(content.begin() + static_cast<std::ptrdiff_t>(kept),
                           content.begin() + static_cast<std::ptrdiff_t>(end), nullptr,
                           /*allow_exceptions=*/false);
    if (!line.is_object())
      throw DataError("{}:{}: not a JSON object; move the file away to restart without it",
                      path.string(), number);
    const auto found = line.find("iteration");
    if (found != line.end() && found->is_number_integer() && found->get<std::int64_t>() > iteration)
      break;
    kept = end + 1;
  }
  if (kept < content.size()) write_file_atomically(path, std::string_view(content).substr(0, kept));
}

}  // namespace trireme::report
