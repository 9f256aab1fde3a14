#include "report/follow/follower.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/clock.hpp"

namespace trireme::report {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kKeptIntervals = 100;

// The file may be of another version: fields that are missing or of another type are absent.

template <typename Value>
std::optional<Value> get(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if constexpr (std::is_same_v<Value, std::string>) {
    if (!found->is_string()) return std::nullopt;
  } else if (!found->is_number()) {
    return std::nullopt;
  }
  return found->template get<Value>();
}

std::int64_t whole(const Json& object, const char* key) {
  return get<std::int64_t>(object, key).value_or(0);
}

std::string text(const Json& object, const char* key) {
  return get<std::string>(object, key).value_or("");
}

template <typename Value>
std::vector<Value> list(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return {};
  std::vector<Value> values;
  for (const Json& value : *found) {
    if (std::is_same_v<Value, std::string> ? !value.is_string() : !value.is_number()) return {};
    values.push_back(value.get<Value>());
  }
  return values;
}

const Json& section(const Json& object, const char* key) {
  static const Json kEmpty = Json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : kEmpty;
}

StartEvent start_of(const Json& line) {
  const Json& layout = section(line, "layout");
  const Json& length = section(line, "length");
  const auto axis = [&](const char* name) {
    constexpr std::int64_t kMaxRanks = 1 << 20;
    return static_cast<int>(
        std::clamp<std::int64_t>(get<std::int64_t>(layout, name).value_or(1), 1, kMaxRanks));
  };
  return {.program = text(line, "program"),
          .version = text(line, "version"),
          .command = text(line, "command"),
          .directory = text(line, "directory"),
          .deck = text(line, "deck"),
          .overrides = list<std::string>(line, "overrides"),
          .device = text(line, "device"),
          .length = {whole(length, "iterations"), whole(length, "samples")},
          .layout = {axis("tensor"), axis("pipeline"), axis("data")},
          .hosts = list<std::string>(line, "hosts"),
          .rank_hosts = list<int>(line, "rank_hosts"),
          .parameters = whole(line, "parameters"),
          .iteration = whole(line, "iteration")};
}

TrainPoint train_of(const Json& line) {
  return {.time = get<double>(line, "time").value_or(0.0),
          .iteration = whole(line, "iteration"),
          .samples = get<std::int64_t>(line, "consumed_samples"),
          .tokens = get<std::int64_t>(line, "consumed_tokens"),
          .global_batch = get<std::int64_t>(line, "global_batch"),
          .loss = get<double>(line, "loss"),
          .grad_norm = get<double>(line, "grad_norm"),
          .learning_rate = get<double>(line, "learning_rate"),
          .ms = get<double>(line, "ms"),
          .tokens_per_second = get<double>(line, "tokens_per_second"),
          .tflops = get<double>(line, "model_tflops_per_rank"),
          .mfu = get<double>(line, "mfu")};
}

std::vector<GpuUse> gpus_of(const Json& line) {
  std::vector<GpuUse> gpus;
  const auto found = line.find("gpus");
  if (found == line.end() || !found->is_array()) return gpus;
  for (const Json& gpu : *found) {
    if (!gpu.is_object()) continue;
    const auto figure = [&](const char* key) {
      return get<double>(gpu, key).value_or(std::numeric_limits<double>::quiet_NaN());
    };
    gpus.push_back({.host = text(gpu, "host"),
                    .index = static_cast<int>(whole(gpu, "index")),
                    .utilisation = figure("utilisation"),
                    .memory = figure("memory"),
                    .memory_total = figure("memory_total"),
                    .temperature = figure("temperature"),
                    .power = figure("power")});
  }
  return gpus;
}

void take_start(RunState& state, const Json& line) {
  state.start = start_of(line);
  state.start_time = get<double>(line, "time").value_or(0.0);
  ++state.starts;
  state.steps = 0;
  state.intervals.clear();
  state.longest_pause = 0;
  state.warning.reset();
  state.stop.reset();
  state.gpus.clear();
  state.rank_ms.clear();
}

void take_train(RunState& state, const Json& line) {
  const TrainPoint point = train_of(line);
  const bool first = state.steps == 0;
  if (!first && state.train) {
    state.intervals.push_back(point.time - state.train->time);
    if (state.intervals.size() > kKeptIntervals) state.intervals.pop_front();
  }
  state.steps = std::max<std::int64_t>(point.iteration - state.start.iteration, 1);
  state.skipped += whole(line, "skipped");
  state.nan += whole(line, "nan");
  if (point.loss && (!state.best_loss || *point.loss < *state.best_loss)) {
    state.best_loss = point.loss;
    state.best_iteration = point.iteration;
  }
  state.train = point;
}

/// An evaluation or a checkpoint: the time since the line before is what it took.
void take_milestone(RunState& state, std::optional<Milestone>& milestone, const Json& line) {
  const double time = get<double>(line, "time").value_or(0.0);
  if (state.last_time > 0)
    state.longest_pause = std::max(state.longest_pause, time - state.last_time);
  milestone = {whole(line, "iteration"), get<double>(line, "loss"),
               get<std::int64_t>(line, "consumed_samples"),
               get<std::int64_t>(line, "consumed_tokens")};
}

void take_memory(RunState& state, const Json& line) {
  const double gpu = get<double>(line, "gpu_bytes").value_or(0.0);
  state.memory = gpu > 0 ? gpu : get<double>(line, "peak_bytes").value_or(0.0);
}

StopEvent stop_of(const Json& line) {
  return {.reason = text(line, "reason"),
          .iteration = whole(line, "iteration"),
          // Without a code a stop counts as a failure.
          .exit_code = static_cast<int>(get<std::int64_t>(line, "exit_code").value_or(1))};
}

}  // namespace

bool RunState::take(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const std::string kind = json.is_object() ? text(json, "kind") : "";
  if (kind.empty()) {
    ++unreadable;
    return false;
  }
  if (kind == "start")
    take_start(*this, json);
  else if (kind == "train")
    take_train(*this, json);
  else if (kind == "eval" && text(json, "split") == "valid")
    take_milestone(*this, evaluation, json);
  else if (kind == "checkpoint")
    take_milestone(*this, checkpoint, json);
  else if (kind == "memory")
    take_memory(*this, json);
  else if (kind == "gpu")
    gpus = gpus_of(json);
  else if (kind == "timers") {
    if (json.contains("rank_ms")) rank_ms = list<double>(json, "rank_ms");
  } else if (kind == "warning")
    warning = WarningEvent{whole(json, "iteration"), text(json, "message")};
  else if (kind == "stop")
    stop = stop_of(json);
  else if (kind != "eval" && kind != "skip" && kind != "rewind" && kind != "task")
    ++unknown_kinds[kind];
  last_time = get<double>(json, "time").value_or(last_time);
  return kind == "train";
}

std::optional<double> RunState::typical_interval() const {
  if (!intervals.empty()) return median(std::vector<double>(intervals.begin(), intervals.end()));
  if (steps > 0 && train->ms) return *train->ms / 1e3 * static_cast<double>(steps);
  return std::nullopt;
}

std::optional<double> RunState::seconds_left() const {
  if (!train || !train->samples || !train->tokens || start.length.samples == 0) return std::nullopt;
  const double rate = train->tokens_per_second.value_or(0.0) *
                      static_cast<double>(*train->samples) /
                      static_cast<double>(std::max<std::int64_t>(*train->tokens, 1));
  if (rate <= 0) return std::nullopt;
  const auto left = static_cast<double>(start.length.samples - *train->samples);
  return std::max(left, 0.0) / rate;
}

}  // namespace trireme::report
