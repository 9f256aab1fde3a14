#include "report/html/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/load.hpp"
#include "report/runs/run_history.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

double number_at(const PageJson& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : kUnknown;
}

std::string text_at(const PageJson& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

PageJson value_at(const PageJson& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() ? *found : PageJson();
}

/// Reads the events of metrics.jsonl.
class RunEvents {
 public:
  void take(const PageJson& event) {
    const std::string kind = text_at(event, "kind");
    if (kind == "train") return take_train(event);
    last_time_ = std::max(last_time_, number_at(event, "time"));
    if (kind == "start") return take_start(event);
    if (kind == "eval") return take_eval(event);
    if (kind == "task") return take_task(event);
    if (kind == "timers") return take_timers(event);
    if (kind == "gpu") return take_gpu(event);
    if (kind == "memory") memory_ = event;
    if (kind == "checkpoint")
      mark("checkpoint", event,
           fmt::format("{} ({:.1f} s)", text_at(event, "path"), number_at(event, "seconds")));
    if (kind == "skip")
      mark("skip", event,
           fmt::format("data of iterations {} to {} skipped (train.skip)",
                       number_at(event, "first"), number_at(event, "last")));
    if (kind == "rewind")
      mark("rewind", event,
           fmt::format("resumed after iteration {} (train.spike): {}", number_at(event, "from"),
                       text_at(event, "reason")));
    if (kind == "warning") mark("warning", event, text_at(event, "message"));
    if (kind == "trace")
      mark("trace", event,
           fmt::format("timeline of iterations {} to {}: {}", number_at(event, "first"),
                       number_at(event, "iteration"), text_at(event, "path")));
    if (kind == "stop") {
      stop_ = event;
      mark("stop", event,
           fmt::format("{} (exit code {})", text_at(event, "reason"),
                       number_at(event, "exit_code")));
    }
  }

  PageJson json() {
    PageJson json{{"start", start_},       {"stop", stop_},
                  {"updated", last_time_}, {"train", train_.json({"iteration", "time", "tokens"})},
                  {"marks", marks_},       {"dropped_marks", dropped_marks_}};
    for (auto& [split, columns] : evaluations_) json["eval"][split] = columns.json({"iteration"});
    for (auto& [task, columns] : tasks_) json["tasks"][task] = columns.json({"iteration"});
    if (!memory_.is_null()) json["memory"] = memory_;
    if (!timers_.is_null()) json["timers"] = timers_;
    if (gpus_.rows() > 0) json["gpu"] = gpus_.json({"iteration"});
    if (!gpu_map_.empty()) json["gpu_map"] = gpu_map_.json(gpu_labels_);
    if (!rank_map_.empty()) json["rank_map"] = rank_map_.json({});
    return json;
  }

 private:
  void mark(const char* kind, const PageJson& event, const std::string& text) {
    // As many as a page can be read with; the newest of what is rare come anyway.
    constexpr std::size_t kMaxMarks = 4000;
    if (marks_.size() >= kMaxMarks && std::strcmp(kind, "stop") != 0) {
      ++dropped_marks_;
      return;
    }
    marks_.push_back({{"kind", kind},
                      {"iteration", value_at(event, "iteration")},
                      {"time", value_at(event, "time")},
                      {"text", text}});
  }

  void take_start(const PageJson& event) {
    if (!start_.is_null() || number_at(event, "iteration") > 0)
      mark("restart", event,
           fmt::format("{} {} started: {}", text_at(event, "program"), text_at(event, "version"),
                       text_at(event, "command")));
    const PageJson begun = start_.is_null() ? value_at(event, "time") : value_at(start_, "begun");
    start_ = event;
    start_["begun"] = begun;
    stop_ = PageJson();
  }

  void take_train(const PageJson& event) {
    const double time = number_at(event, "time");
    last_time_ = std::max(last_time_, time);
    train_.begin_row();
    train_.set("iteration", number_at(event, "iteration"));
    train_.set("time", time);
    train_.set("tokens", number_at(event, "consumed_tokens"));
    for (const char* name :
         {"loss", "sentence_loss", "grad_norm", "parameter_norm", "learning_rate", "loss_scale",
          "global_batch", "ms", "tokens_per_second", "mfu"})
      train_.set(name, number_at(event, name));
    train_.set("tflops", number_at(event, "model_tflops_per_rank"));
    const double skipped = number_at(event, "skipped"), nan = number_at(event, "nan");
    if (skipped > 0 || nan > 0)
      mark(nan > 0 ? "nan" : "skipped", event,
           nan > 0 ? fmt::format("not finite: the loss of {}",
                                 counted(static_cast<std::int64_t>(nan), "iteration"))
                   : fmt::format("{} without an update",
                                 counted(static_cast<std::int64_t>(skipped), "iteration")));
  }

  void take_eval(const PageJson& event) {
    Columns& columns = evaluations_[text_at(event, "split")];
    columns.begin_row();
    columns.set("iteration", number_at(event, "iteration"));
    columns.set("tokens", number_at(event, "consumed_tokens"));
    columns.set("time", number_at(event, "time"));
    columns.set("loss", number_at(event, "loss"));
  }

  void take_task(const PageJson& event) {
    for (const auto& [name, value] : event.items()) {
      if (!value.is_number() || name == "time" || name == "iteration" ||
          name.starts_with("consumed_"))
        continue;
      Columns& columns = tasks_[text_at(event, "task") + " " + name];
      columns.begin_row();
      columns.set("iteration", number_at(event, "iteration"));
      columns.set("value", value.get<double>());
    }
  }

  void take_timers(const PageJson& event) {
    const PageJson ranks = value_at(event, "rank_ms");
    if (!ranks.is_array() || ranks.empty()) return;
    timers_ = event;
    timers_.erase("rank_ms");
    std::vector<double> values;
    for (const PageJson& value : ranks)
      values.push_back(value.is_number() ? value.get<double>() : kUnknown);
    rank_map_.add(number_at(event, "iteration"), std::move(values));
  }

  void take_gpu(const PageJson& event) {
    const PageJson gpus = value_at(event, "gpus");
    if (!gpus.is_array() || gpus.empty()) return;
    std::vector<double> use;
    double power = 0, memory = 0;
    std::vector<std::string> labels;
    for (const PageJson& gpu : gpus) {
      use.push_back(number_at(gpu, "utilisation"));
      labels.push_back(fmt::format("{} GPU {}", text_at(gpu, "host"), number_at(gpu, "index")));
      if (const double watts = number_at(gpu, "power"); !std::isnan(watts)) power += watts;
      if (const double bytes = number_at(gpu, "memory"); bytes > memory) memory = bytes;
    }
    std::vector<double> known = use;
    std::erase_if(known, [](double x) { return std::isnan(x); });
    gpus_.begin_row();
    gpus_.set("iteration", number_at(event, "iteration"));
    if (!known.empty()) {
      double sum = 0;
      for (const double x : known) sum += x;
      gpus_.set("mean", sum / static_cast<double>(known.size()));
      gpus_.set("lowest", *std::min_element(known.begin(), known.end()));
      gpus_.set("highest", *std::max_element(known.begin(), known.end()));
    }
    if (power > 0) gpus_.set("power", power);
    if (memory > 0) gpus_.set("memory", memory);
    gpu_labels_ = std::move(labels);
    gpu_map_.add(number_at(event, "iteration"), std::move(use));
  }

  PageJson start_, stop_, memory_, timers_;
  double last_time_ = 0;
  Columns train_, gpus_;
  std::map<std::string, Columns> evaluations_, tasks_;
  PageJson marks_ = PageJson::array();
  std::size_t dropped_marks_ = 0;
  std::vector<std::string> gpu_labels_;
  HeatMap gpu_map_, rank_map_;
};

// ---------------------------------------------------------------------------- runs

/// The first recorded iteration; of all ranks, as far as a page can hold them.
PageJson timeline_of(const fs::path& path) {
  constexpr std::size_t kMaxSpans = 2'000'000;
  std::vector<TraceSpan> spans;
  const Trace trace = read_trace(path, [&](const TraceSpan& span) {
    if (spans.size() < kMaxSpans && (spans.empty() || span.iteration == spans[0].iteration))
      spans.push_back(span);
  });
  if (spans.empty()) return {};
  double origin = spans[0].start_ms;
  for (const TraceSpan& span : spans) origin = std::min(origin, span.start_ms);
  std::map<std::string, int> numbers;
  PageJson names = PageJson::array();
  std::vector<double> start, ms, rank, lane, name, micro_batch;
  for (const TraceSpan& span : spans) {
    const auto [found, added] = numbers.try_emplace(span.name, static_cast<int>(numbers.size()));
    if (added) names.push_back(span.name);
    start.push_back(span.start_ms - origin);
    ms.push_back(span.ms);
    rank.push_back(span.rank);
    lane.push_back(span.lane);
    name.push_back(found->second);
    micro_batch.push_back(span.micro_batch);
  }
  PageJson lanes = PageJson::object();
  for (const TraceLane& each : trace.lanes)
    if (each.rank == trace.lanes[0].rank) lanes[std::to_string(each.lane)] = each.name;
  PageJson json{
      {"iteration", spans[0].iteration}, {"ranks", trace.ranks}, {"lanes", lanes}, {"names", names},
      {"bubble", trace.figures.bubble},  {"rows", spans.size()}};
  if (trace.figures.simulated_bubble) json["simulated_bubble"] = *trace.figures.simulated_bubble;
  for (const auto& [key, values] : {std::pair("start", &start),
                                    {"ms", &ms},
                                    {"rank", &rank},
                                    {"lane", &lane},
                                    {"name", &name},
                                    {"micro_batch", &micro_batch}})
    json["f32"][key] = pack<float>(*values);
  return json;
}

PageJson events_of(const fs::path& metrics, std::FILE* progress) {
  std::ifstream file(metrics);
  if (!file) throw IoError("cannot read '{}': {}", metrics.string(), std::strerror(errno));
  RunEvents events;
  std::error_code unknown;
  const std::uintmax_t size = fs::file_size(metrics, unknown);
  Progress meter("reading '" + metrics.string() + "'", "B",
                 unknown ? 0.0 : static_cast<double>(size), progress);
  double bytes = 0;
  for (std::string line; std::getline(file, line);) {
    meter.update(bytes += static_cast<double>(line.size() + 1));
    const PageJson event = PageJson::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object()) events.take(event);
  }
  return events.json();
}

PageJson rows_of_log(const fs::path& path) {
  Columns train;
  for (const TrainRow& row : read_run(path).train) {
    train.begin_row();
    train.set("iteration", static_cast<double>(row.iteration));
    const std::pair<const char*, std::optional<double>> values[] = {
        {"tokens", row.tokens},
        {"loss", row.loss},
        {"grad_norm", row.grad_norm},
        {"learning_rate", row.learning_rate},
        {"global_batch", row.global_batch},
        {"ms", row.ms},
        {"tokens_per_second", row.tokens_per_second},
        {"tflops", row.tflops},
        {"mfu", row.mfu}};
    for (const auto& [name, value] : values) train.set(name, value.value_or(kUnknown));
  }
  return {{"train", train.json({"iteration", "tokens"})}, {"marks", PageJson::array()}};
}

}  // namespace

PageJson run_json(const fs::path& path, std::FILE* progress) {
  PageJson run;
  if (fs::is_directory(path)) {
    run = events_of(path / "metrics.jsonl", progress);
    if (fs::exists(path / "trace.json")) run["timeline"] = timeline_of(path / "trace.json");
  } else {
    run = path.extension() == ".jsonl" ? events_of(path, progress) : rows_of_log(path);
  }
  return run;
}

namespace {

/// `paths`, with the runs in a folder of runs.
std::vector<fs::path> expand(const std::vector<fs::path>& paths) {
  std::vector<fs::path> runs;
  for (const fs::path& path : paths) {
    std::vector<fs::path> inside;
    if (fs::is_directory(path) && !fs::exists(path / "metrics.jsonl"))
      for (const fs::directory_entry& entry : fs::directory_iterator(path))
        if (fs::exists(entry.path() / "metrics.jsonl")) inside.push_back(entry.path());
    if (fs::is_directory(path) && !fs::exists(path / "metrics.jsonl") && inside.empty())
      throw IoError(
          "'{}' is no run folder: it has no metrics.jsonl, and none of its folders has one",
          path.string());
    std::sort(inside.begin(), inside.end());
    if (inside.empty()) inside = {path};
    runs.insert(runs.end(), inside.begin(), inside.end());
  }
  return runs;
}

/// The deck keys in which the runs differ, and each run's values.
PageJson deck_differences(const std::vector<fs::path>& runs) {
  std::vector<std::optional<deck::Deck>> decks;
  for (const fs::path& run : runs) {
    try {
      decks.emplace_back(deck::load((run / "deck.yaml").string(), {}, {.need_data = false}));
    } catch (const Error&) {  // a log, or a deck of another version
      decks.emplace_back();
    }
  }
  PageJson keys = PageJson::object();
  const auto first = std::find_if(decks.begin(), decks.end(), [](const auto& d) { return d; });
  if (first == decks.end()) return keys;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!decks[i]) continue;
    for (const deck::Change& change : deck::compare_for_restart(**first, *decks[i])) {
      if (change.key == "run.name" || change.key == "run.output") continue;
      PageJson& values = keys[change.key];
      if (values.is_null())
        for (const auto& each : decks)
          values.push_back(each ? PageJson(change.before) : PageJson());
      values[i] = change.after;
    }
  }
  return keys;
}

/// Names that tell runs apart: the last folders of their paths, as many as it takes.
std::vector<std::string> short_names(const std::vector<fs::path>& runs) {
  std::vector<std::string> names;
  for (int parts = 1; parts < 64; ++parts) {
    names.clear();
    for (const fs::path& run : runs) {
      fs::path name, rest = fs::absolute(run).lexically_normal();
      if (rest.filename().empty()) rest = rest.parent_path();
      for (int i = 0; i < parts && rest.has_filename(); ++i, rest = rest.parent_path())
        name = name.empty() ? rest.filename() : rest.filename() / name;
      names.push_back(name.string());
    }
    if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) break;
  }
  return names;
}

std::string replaced(std::string text, std::string_view mark, std::string_view by) {
  const std::size_t at = text.find(mark);
  TRIREME_CHECK(at != std::string::npos, "the page has no {}", mark);
  return text.replace(at, mark.size(), by);
}

}  // namespace

std::string html_page(const std::vector<fs::path>& paths, std::FILE* progress,
                      const std::function<void(const std::string&)>& warn) {
  std::vector<fs::path> runs, empty;
  PageJson data{{"made", unix_time()}, {"runs", PageJson::array()}};
  for (const fs::path& path : expand(paths)) {
    PageJson run = run_json(path, progress);
    const bool is_empty = run["train"]["rows"] == 0;
    (is_empty ? empty : runs).push_back(path);
    if (!is_empty) data["runs"].push_back(std::move(run));
  }
  const char* const problem = ": no training line in it";
  if (runs.empty()) throw DataError("{}{}", empty.front().string(), problem);
  for (const fs::path& run : empty) warn(run.string() + problem);
  const std::vector<std::string> names = short_names(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) data["runs"][i]["name"] = names[i];
  data["keys"] = deck_differences(runs);
  // Nothing in the data can end the element that holds it.
  std::string text;
  for (const char c : data.dump(-1, ' ', false, PageJson::error_handler_t::replace))
    text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  std::string page(html::kPage);
  page = replaced(std::move(page), "/*uplot.css*/", html::kUplotCss);
  page = replaced(std::move(page), "/*report.css*/", html::kStyle);
  page = replaced(std::move(page), "/*uplot.js*/", html::kUplot);
  page = replaced(std::move(page), "/*report.js*/", html::kScript);
  return replaced(std::move(page), "/*data*/", text);
}

}  // namespace trireme::report
