#include "report/runs/run_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"

namespace trireme::report {
namespace {

using TraceJson = nlohmann::ordered_json;

constexpr std::string_view kTraceHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
constexpr std::string_view kTraceTail = "{}],\"otherData\":";

std::string dump_line(const TraceJson& json) {
  return json.dump(-1, ' ', false, TraceJson::error_handler_t::replace) + ",\n";
}

std::string named(const char* what, int rank, int lane, const std::string& name) {
  return dump_line(
      {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}});
}

TraceSpan span_of(const TraceJson& json) {
  const TraceJson& args = json.at("args");
  return {.rank = json.at("pid"),
          .lane = json.at("tid"),
          .name = json.at("name"),
          .iteration = args.value("iteration", std::int64_t{0}),
          .micro_batch = args.value("micro_batch", -1),
          .chunk = args.value("chunk", -1),
          .start_ms = json.at("ts").get<double>() / 1e3,
          .ms = json.at("dur").get<double>() / 1e3,
          .rewinds = args.value("rewinds", 0)};
}

TraceFigures figures_of(const TraceJson& json) {
  TraceFigures figures{.first = json.value("first_iteration", std::int64_t{0}),
                       .last = json.value("last_iteration", std::int64_t{0}),
                       .ranks = json.value("ranks", 0),
                       .bubble = json.value("bubble", 0.0),
                       .clock_error_ms = json.value("clock_error_ms", 0.0)};
  if (const auto found = json.find("simulated_bubble"); found != json.end() && found->is_number())
    figures.simulated_bubble = found->get<double>();
  return figures;
}

}  // namespace

bool is_pass(std::string_view name) {
  return std::find(std::begin(kPassNames), std::end(kPassNames), name) != std::end(kPassNames);
}

std::string trace_head() { return std::string(kTraceHead) + "\n"; }

std::string trace_rank_line(int rank, const std::string& name) {
  return named("process_name", rank, 0, name) + dump_line({{"ph", "M"},
                                                           {"name", "process_sort_index"},
                                                           {"pid", rank},
                                                           {"args", {{"sort_index", rank}}}});
}

std::string trace_lane_line(int rank, int lane, const std::string& name) {
  return named("thread_name", rank, lane, name);
}

std::string trace_span_line(const TraceSpan& span) {
  std::string args = fmt::format("\"iteration\":{}", span.iteration);
  if (span.micro_batch >= 0) args += fmt::format(",\"micro_batch\":{}", span.micro_batch);
  if (span.chunk >= 0) args += fmt::format(",\"chunk\":{}", span.chunk);
  if (span.rewinds > 0) args += fmt::format(",\"rewinds\":{}", span.rewinds);
  return fmt::format(
      "{{\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},"
      "\"args\":{{{}}}}},\n",
      TraceJson(span.name).dump(), span.rank, span.lane, span.start_ms * 1e3, span.ms * 1e3, args);
}

std::string trace_tail(const TraceFigures& figures) {
  TraceJson json{{"first_iteration", figures.first},
                 {"last_iteration", figures.last},
                 {"ranks", figures.ranks},
                 {"bubble", figures.bubble},
                 {"clock_error_ms", figures.clock_error_ms}};
  if (figures.simulated_bubble) json["simulated_bubble"] = *figures.simulated_bubble;
  return std::string(kTraceTail) + json.dump() + "}\n";
}

Trace read_trace(const std::filesystem::path& path,
                 const std::function<void(const TraceSpan&)>& take) {
  errno = 0;
  std::ifstream file(path);
  if (!file) throw IoError("cannot read '{}': {}", path.string(), std::strerror(errno));
  std::string line;
  if (!std::getline(file, line) || line != kTraceHead)
    throw DataError("'{}' is no trace.json of this program", path.string());
  Trace trace;
  while (std::getline(file, line)) {
    const bool last = line.starts_with(kTraceTail);
    if (last)
      line = line.substr(kTraceTail.size(), line.size() - kTraceTail.size() - 1);
    else if (line.ends_with(','))
      line.pop_back();
    const TraceJson json = TraceJson::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;  // cut short
    try {
      if (last) {
        trace.figures = figures_of(json);
      } else if (json.value("ph", "") == "X") {
        take(span_of(json));
      } else if (json.value("name", "") == "process_name") {
        const std::size_t rank = json.at("pid").get<std::size_t>();
        if (trace.ranks.size() <= rank)
          trace.ranks.resize(std::min<std::size_t>(rank, 1 << 20) + 1);
        trace.ranks.at(rank) = json.at("args").at("name").get<std::string>();
      } else if (json.value("name", "") == "thread_name") {
        trace.lanes.push_back({json.at("pid"), json.at("tid"), json.at("args").at("name")});
      }
    } catch (const std::exception& error) {
      throw DataError("'{}' has a line that is no event of this program: {}", path.string(),
                      error.what());
    }
  }
  return trace;
}

std::string trace_summary(const std::filesystem::path& path, std::size_t most) {
  struct Sums {
    std::map<std::string, double> ms;  ///< by name
    double busy = 0, begin = 0, end = 0;
  };
  std::map<int, Sums> ranks;
  std::map<std::string, double> names;
  std::set<std::pair<std::int64_t, int>> iterations;  // with rewinds
  const Trace trace = read_trace(path, [&](const TraceSpan& span) {
    Sums& sums = ranks[span.rank];
    sums.ms[span.name] += span.ms;
    names[span.name] += span.ms;
    iterations.emplace(span.iteration, span.rewinds);
    if (is_pass(span.name)) sums.busy += span.ms;
  });
  if (iterations.empty()) throw DataError("'{}' has no recorded iteration", path.string());
  const auto count = static_cast<double>(iterations.size());

  std::vector<std::pair<double, std::string>> columns;
  for (const auto& [name, ms] : names) columns.emplace_back(-ms, name);
  std::sort(columns.begin(), columns.end());
  TableRows rows{{"rank"}};
  for (const auto& [ms, name] : columns) rows[0].push_back(name);
  std::vector<std::pair<double, int>> order;
  for (const auto& [rank, sums] : ranks) order.emplace_back(-sums.busy, rank);
  std::sort(order.begin(), order.end());
  if (order.size() > most) order.resize(most);
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [busy, rank] : order) {
    const auto index = static_cast<std::size_t>(rank);
    rows.push_back({index < trace.ranks.size() ? trace.ranks[index] : std::to_string(rank)});
    for (const auto& [ms, name] : columns) {
      const auto found = ranks[rank].ms.find(name);
      rows.back().push_back(
          found == ranks[rank].ms.end() ? "" : fmt::format("{:.2f}", found->second / count));
    }
  }
  const TraceFigures& figures = trace.figures;
  return fmt::format("{}, iterations {} to {}: milliseconds per iteration\n{}",
                     counted(ranks.size(), "rank"), iterations.begin()->first,
                     iterations.rbegin()->first, aligned_table(rows, 1)) +
         fmt::format(
             "bubble: {:.1f}% measured, {} simulated with the passes' mean times; clocks "
             "of ranks within {:.3f} ms\n",
             100 * figures.bubble,
             figures.simulated_bubble ? fmt::format("{:.1f}%", 100 * *figures.simulated_bubble)
                                      : "none",
             figures.clock_error_ms);
}

void write_trace_csv(const std::filesystem::path& path,
                     const std::function<void(const std::string&)>& write) {
  write("rank,iteration,lane,name,micro_batch,chunk,start_ms,ms\n");
  const auto number = [](int value) { return value < 0 ? "" : std::to_string(value); };
  read_trace(path, [&](const TraceSpan& span) {
    write(fmt::format("{},{},{},{},{},{},{:.6f},{:.6f}\n", span.rank, span.iteration, span.lane,
                      span.name, number(span.micro_batch), number(span.chunk), span.start_ms,
                      span.ms));
  });
}

}  // namespace trireme::report
