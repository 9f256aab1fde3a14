// The state of a run by the lines of its metrics.jsonl, and the errors in the output of its ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <deque>
#include <limits>
#include <type_traits>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "report/follow/follower.hpp"

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

RunLength length_of(const Json& line) {
  const Json& length = section(line, "length");
  return {whole(length, "iterations"), whole(length, "samples")};
}

StartEvent start_of(const Json& line) {
  const Json& layout = section(line, "layout");
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
          .length = length_of(line),
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
  state.reported = state.start.iteration;
  state.intervals.clear();
  state.longest_pause = 0;
  state.warning.reset();
  state.stop.reset();
  state.gpus.clear();
  state.rank_ms.clear();
}

void take_train(RunState& state, const Json& line) {
  TrainPoint point = train_of(line);
  point.since = std::exchange(state.reported, point.iteration);
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
  else if (kind == "rewind") {
    reported = whole(json, "iteration");
    if (json.contains("length")) start.length = length_of(json);
  } else if (kind != "eval" && kind != "skip" && kind != "task")
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

// ---------------------------------------------------------------------------- rank output

namespace {

constexpr std::string_view kErrorWords[] = {"error",
                                            "fatal",
                                            "exception",
                                            "traceback",
                                            "abort",
                                            "segmentation fault",
                                            "bus error",
                                            "illegal instruction",
                                            "terminate called",
                                            "out of memory",
                                            "oom-kill",
                                            "core dumped",
                                            "killed",
                                            "cannot ",
                                            "timed out",
                                            "took longer than",
                                            "no space left",
                                            "cancelled at"};
/// Programs of Trireme print only errors as "NAME: message" on standard error.
constexpr std::string_view kOwnPrefix = "trireme-";

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

/// Lines of rank 0's header and trailer repeat the user's words, which may look like an error.
bool repeats_command(std::string_view line) {
  return line.starts_with("command    ") || line.starts_with("continue   ") ||
         line.starts_with("run folder ") || line.starts_with("restart    ") ||
         line.starts_with("checkpoint ") || line.starts_with("  successfully saved checkpoint");
}

/// Takes "[rank 3] " off the line and returns "3", "" when there is none.
std::string take_rank(std::string_view& line) {
  constexpr std::string_view kBegin = "[rank ";
  const std::size_t end = line.find("] ");
  if (!line.starts_with(kBegin) || end == std::string_view::npos) return "";
  const std::string rank(line.substr(kBegin.size(), end - kBegin.size()));
  line.remove_prefix(end + 2);
  return rank;
}

/// The first line of a start in a job's output, to which a requeued job appends.
bool starts_introduction(std::string_view line) { return line.starts_with("command    "); }

/// `line` for a terminal: control characters replaced, and truncated.
std::string shown(std::string_view line) {
  constexpr std::size_t kMaxShown = 200;
  std::string text(line.substr(0, kMaxShown));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return text + (line.size() > kMaxShown ? "..." : "");
}

bool is_warning(const std::string& lower_line) {
  return lower_line.find("warn") != std::string::npos;
}

}  // namespace

bool tells_of_error(std::string_view line) {
  if (repeats_command(line)) return false;
  const std::string text = lower(line);
  if (is_warning(text) || text.find(" nccl info ") != std::string::npos) return false;
  // "trireme-pretrain: rank 3 on node07: ...", but not "trireme-pretrain 0.1.0".
  if (text.starts_with(kOwnPrefix) && text.find(": ") < text.find(' ')) return true;
  return std::any_of(std::begin(kErrorWords), std::end(kErrorWords),
                     [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

void RankOutput::take(const std::string& file, std::string_view line) {
  auto& ranks = files_[file];
  const std::string rank = take_rank(line);
  Said& said = ranks[rank];
  const bool starts =
      line.starts_with(kOutputMarker) || (rank.empty() && starts_introduction(line));
  if (starts) said = {};
  if (tells_of_error(line)) {
    if (said.errors++ == 0)
      said.first_error = (rank.empty() ? "" : "rank " + rank + ": ") + shown(line);
  } else if (is_warning(lower(line)) && !repeats_command(line)) {
    ++said.warnings;
  }
}

std::int64_t RankOutput::errors() const {
  std::int64_t sum = 0;
  for (const auto& [file, ranks] : files_)
    for (const auto& [rank, said] : ranks) sum += said.errors;
  return sum;
}

std::int64_t RankOutput::warnings() const {
  std::int64_t sum = 0;
  for (const auto& [file, ranks] : files_)
    for (const auto& [rank, said] : ranks) sum += said.warnings;
  return sum;
}

std::string RankOutput::first_error() const {
  for (const auto& [file, ranks] : files_)
    for (const auto& [rank, said] : ranks)
      if (said.errors > 0) return file + ": " + said.first_error;
  return "";
}

namespace {

/// The end of a file.
struct FileEnd {
  std::size_t count = 0;         ///< all lines
  std::deque<std::string> last;  ///< at most as many as were asked for
  std::string with_hosts;        ///< the newest line that names hosts and GPUs
};

FileEnd read_end(const std::filesystem::path& path, std::size_t lines) {
  FileEnd end;
  LineFile file(path);
  for (std::string& line : file.read().lines) {
    ++end.count;
    if (line.starts_with("hosts ")) end.with_hosts = line;
    end.last.push_back(std::move(line));
    if (end.last.size() > lines) end.last.pop_front();
  }
  return end;
}

/// "iteration 30: 420.1 ms" for the last training lines.
std::string last_times(const std::filesystem::path& metrics, std::size_t lines) {
  std::deque<std::string> times;
  RunState state;
  LineFile file(metrics);
  for (const std::string& line : file.read().lines) {
    if (!state.take(line) || !state.train->ms) continue;
    times.push_back(
        fmt::format("iteration {}: {:.1f} ms\n", state.train->iteration, *state.train->ms));
    if (times.size() > lines) times.pop_front();
  }
  return fmt::format("{}", fmt::join(times, ""));
}

}  // namespace

std::string last_lines(const std::filesystem::path& run, std::size_t lines) {
  std::vector<std::filesystem::path> files;
  std::error_code none;  // without log.rank_files there is no such folder
  for (const auto& entry : std::filesystem::directory_iterator(run / "ranks", none))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  files.insert(files.begin(), run / "console.log");
  std::string text;
  for (const std::filesystem::path& path : files) {
    const FileEnd end = read_end(path, lines);
    if (!end.with_hosts.empty()) text = end.with_hosts + "\n" + text;
    text += fmt::format("\n== {}, {}\n", path.lexically_relative(run).string(),
                        counted(end.count, "line"));
    for (const std::string& line : end.last) text += line + "\n";
  }
  return last_times(run / "metrics.jsonl", lines) + text;
}

}  // namespace trireme::report
