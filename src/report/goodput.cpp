#include "report/metrics.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"

namespace trireme::report {
namespace {

/// The JSON objects of `text`, a line each.
std::vector<nlohmann::ordered_json> parse_objects(std::string_view text) {
  std::vector<nlohmann::ordered_json> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    nlohmann::ordered_json line =
        nlohmann::ordered_json::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (line.is_object()) lines.push_back(std::move(line));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// The number `key` of an event; 0 when it is null or absent.
double number_of(const nlohmann::ordered_json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::int64_t event_iteration(const nlohmann::ordered_json& event) {
  return static_cast<std::int64_t>(number_of(event, "iteration"));
}

/// Iterations (first, last] that took `seconds`.
struct IterationRange {
  std::int64_t first = 0, last = 0;
  double seconds = 0.0;
};

/// Seconds that the update of an iteration waited for a checkpoint, which its time contains.
struct UpdateWait {
  std::int64_t iteration = 0;
  double seconds = 0.0;
};

void take_out(const std::vector<UpdateWait>& waits, std::vector<IterationRange>& intervals) {
  for (const UpdateWait& wait : waits)
    for (IterationRange& interval : intervals)
      if (interval.first < wait.iteration && wait.iteration <= interval.last)
        interval.seconds = std::max(interval.seconds - wait.seconds, 0.0);
}

/// Divides the intervals into what is kept up to iteration `kept`, and what is lost.
void divide_ranges(const std::vector<IterationRange>& intervals, std::int64_t kept,
                   RunStart& start) {
  for (const IterationRange& interval : intervals) {
    const double count = static_cast<double>(interval.last - interval.first);
    const auto useful =
        static_cast<double>(std::clamp(kept, interval.first, interval.last) - interval.first);
    start.useful += interval.seconds * useful / count;
    start.lost += interval.seconds * (count - useful) / count;
  }
  start.lost_iterations += std::max<std::int64_t>(start.reached - kept, 0);
}

nlohmann::ordered_json start_json(const RunStart& start) {
  nlohmann::ordered_json json = {{"began", start.began},
                                 {"ended", start.ended},
                                 {"first_iteration", start.first_iteration},
                                 {"reached", start.reached},
                                 {"lost_iterations", start.lost_iterations},
                                 {"start_up", start.start_up},
                                 {"useful", start.useful},
                                 {"lost", start.lost},
                                 {"checkpoints", start.checkpoints},
                                 {"cause", start.cause}};
  json["exit_code"] =
      start.exit_code ? nlohmann::ordered_json(*start.exit_code) : nlohmann::ordered_json(nullptr);
  return json;
}

RunStart start_from(const nlohmann::ordered_json& json) {
  RunStart start{.began = number_of(json, "began"),
                 .ended = number_of(json, "ended"),
                 .first_iteration = static_cast<std::int64_t>(number_of(json, "first_iteration")),
                 .reached = static_cast<std::int64_t>(number_of(json, "reached")),
                 .lost_iterations = static_cast<std::int64_t>(number_of(json, "lost_iterations")),
                 .start_up = number_of(json, "start_up"),
                 .useful = number_of(json, "useful"),
                 .lost = number_of(json, "lost"),
                 .checkpoints = number_of(json, "checkpoints"),
                 .cause = json.value("cause", "")};
  if (json.contains("exit_code") && json["exit_code"].is_number())
    start.exit_code = json["exit_code"].get<std::int64_t>();
  return start;
}

/// The sums over all starts.
struct Totals {
  double seconds = 0.0;  ///< from the first start to the last event
  double useful = 0.0, lost = 0.0, start_up = 0.0, checkpoints = 0.0, between = 0.0;
  std::int64_t lost_iterations = 0;

  explicit Totals(const std::vector<RunStart>& starts) {
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const RunStart& start = starts[i];
      useful += start.useful;
      lost += start.lost;
      start_up += start.start_up;
      checkpoints += start.checkpoints;
      lost_iterations += start.lost_iterations;
      if (i > 0) between += std::max(start.began - starts[i - 1].ended, 0.0);
    }
    if (!starts.empty()) seconds = std::max(starts.back().ended - starts.front().began, 0.0);
  }
  double other() const {
    return std::max(seconds - useful - lost - start_up - checkpoints - between, 0.0);
  }
  double goodput() const { return seconds > 0.0 ? useful / seconds : 0.0; }
};

}  // namespace

std::optional<RunStart> last_start(std::string_view metrics, std::optional<std::int64_t> resumed) {
  const std::size_t begin = metrics.rfind("{\"kind\":\"start\"");
  if (begin == std::string_view::npos) return std::nullopt;
  const std::vector<nlohmann::ordered_json> events = parse_objects(metrics.substr(begin));
  if (events.empty()) return std::nullopt;
  RunStart start{.began = number_of(events[0], "time"),
                 .first_iteration = event_iteration(events[0]),
                 .reached = event_iteration(events[0]),
                 .cause = "killed, or lost a rank"};
  std::vector<IterationRange> intervals;
  std::vector<UpdateWait> waits;
  double between_iterations = 0.0;  // seconds of checkpoints
  std::int64_t saved = start.first_iteration;
  for (const nlohmann::ordered_json& event : events) {
    const std::string kind = event.value("kind", "");
    start.ended = std::max(start.ended, number_of(event, "time"));
    if (kind == "train") {
      const IterationRange interval{
          start.reached, event_iteration(event),
          number_of(event, "ms") / 1e3 *
              static_cast<double>(event_iteration(event) - start.reached)};
      if (interval.last <= interval.first) continue;
      if (intervals.empty())
        start.start_up = std::max(
            number_of(event, "time") - start.began - interval.seconds - between_iterations, 0.0);
      intervals.push_back(interval);
      start.reached = interval.last;
    } else if (kind == "checkpoint") {
      saved = event_iteration(event);
      const double waited =
          number_of(event, event.contains("stall_seconds") ? "stall_seconds" : "seconds");
      waits.push_back({saved + 1, number_of(event, "update_wait_seconds")});
      start.checkpoints += waited;
      between_iterations += waited - waits.back().seconds;
    } else if (kind == "rewind") {  // the iterations in between are cut from the file
      saved = event_iteration(event);
      start.lost += number_of(event, "lost_seconds");
      start.lost_iterations += static_cast<std::int64_t>(number_of(event, "from")) - saved;
    } else if (kind == "stop") {
      start.cause = event.value("reason", "");
      start.exit_code = static_cast<std::int64_t>(number_of(event, "exit_code"));
    }
  }
  take_out(waits, intervals);
  divide_ranges(intervals, resumed.value_or(saved), start);
  return start;
}

void record_last_start(const std::filesystem::path& folder, std::int64_t resumed) {
  const std::filesystem::path metrics = folder / "metrics.jsonl";
  std::error_code unreadable;
  if (!std::filesystem::exists(metrics, unreadable)) return;
  const auto start = last_start(read_file(metrics), resumed);
  if (!start) return;
  std::ofstream file(folder / "starts.jsonl", std::ios::app);
  file << start_json(*start).dump() << '\n' << std::flush;
  if (!file) throw IoError("cannot write '{}'", (folder / "starts.jsonl").string());
}

std::vector<RunStart> read_starts(const std::filesystem::path& folder) {
  std::vector<RunStart> starts;
  std::error_code unreadable;
  if (std::filesystem::exists(folder / "starts.jsonl", unreadable))
    for (const nlohmann::ordered_json& line : parse_objects(read_file(folder / "starts.jsonl")))
      starts.push_back(start_from(line));
  const auto last = last_start(read_file(folder / "metrics.jsonl"), std::nullopt);
  if (!last && starts.empty())
    throw DataError("'{}': no start event in it", (folder / "metrics.jsonl").string());
  // A start that is cutting metrics.jsonl has recorded what is still there.
  if (last && (starts.empty() || starts.back().began != last->began)) starts.push_back(*last);
  return starts;
}

std::string goodput_line(const std::vector<RunStart>& starts) {
  const Totals totals(starts);
  return fmt::format(
      "goodput {:.1f} % of {} in {}: useful {}, lost {} ({}), start-up {}, checkpoints {}, between "
      "starts {}, other {}",
      100.0 * totals.goodput(), human_duration(totals.seconds), counted(starts.size(), "start"),
      human_duration(totals.useful), human_duration(totals.lost),
      counted(totals.lost_iterations, "iteration"), human_duration(totals.start_up),
      human_duration(totals.checkpoints), human_duration(totals.between),
      human_duration(totals.other()));
}

std::string goodput_text(const std::vector<RunStart>& starts) {
  struct Cause {
    std::int64_t starts = 0, iterations = 0;
    double lost = 0.0, down = 0.0;
  };
  std::map<std::string, Cause> causes;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    Cause& cause = causes[starts[i].cause];
    ++cause.starts;
    cause.iterations += starts[i].lost_iterations;
    cause.lost += starts[i].lost;
    if (i + 1 < starts.size())
      cause.down += std::max(starts[i + 1].began - starts[i].ended, 0.0) + starts[i + 1].start_up;
  }
  std::string text = goodput_line(starts) + "\n\n";
  text += fmt::format("{:<32} {:>7} {:>16} {:>14} {:>14}\n", "end of a start", "starts",
                      "lost iterations", "lost", "until resumed");
  for (const auto& [name, cause] : causes)
    text += fmt::format("{:<32} {:>7} {:>16} {:>14} {:>14}\n", name, cause.starts, cause.iterations,
                        human_duration(cause.lost), human_duration(cause.down));
  return text;
}

std::string goodput_json(const std::vector<RunStart>& starts) {
  const Totals totals(starts);
  nlohmann::ordered_json json = {{"goodput", totals.goodput()},
                                 {"seconds", totals.seconds},
                                 {"useful", totals.useful},
                                 {"lost", totals.lost},
                                 {"lost_iterations", totals.lost_iterations},
                                 {"start_up", totals.start_up},
                                 {"checkpoints", totals.checkpoints},
                                 {"between", totals.between},
                                 {"other", totals.other()},
                                 {"starts", nlohmann::ordered_json::array()}};
  for (const RunStart& start : starts) json["starts"].push_back(start_json(start));
  return json.dump(2) + "\n";
}

}  // namespace trireme::report
