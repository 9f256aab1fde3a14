#include "evaluate/results.hpp"

#include <algorithm>

#include "app.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "report/runs/run_history.hpp"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char kNoCurve[] =
    "--plot draws a curve over several checkpoints: give --all-checkpoints, or "
    "--checkpoint more than once";

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// " lambada at iteration 800 | accuracy: 0.4518 | ... |", from the first number of a result on.
std::string one_line(const Json& result) {
  std::string line = fmt::format(" {}", plain(result["task"]));
  bool numbers = false;
  for (const auto& [key, value] : result.items()) {
    if (key == "iteration") {
      line += fmt::format(" at iteration {} |", plain(value));
      numbers = true;
    } else if (numbers && key != "seconds") {
      line += fmt::format(
          " {}: {} |", key,
          value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : plain(value));
    }
  }
  return line + "\n";
}

}  // namespace

void print_results(const std::vector<Json>& results, bool json) {
  if (json)
    return print_out((results.size() == 1 ? results.front() : Json{{"results", results}})
                         .dump(-1, ' ', false, Json::error_handler_t::replace) +
                     "\n");
  if (results.size() == 1) {
    std::string text;
    for (const auto& [key, value] : results.front().items())
      text += fmt::format("{:<19} {}\n", key, plain(value));
    if (results.front().contains("checkpoint")) text += one_line(results.front());
    return print_out(text);
  }
  TableRows rows(1);
  for (const Json& result : results) {
    std::vector<std::string> row;
    for (const auto& [key, value] : result.items()) {
      if (key == "task" || key == "input" || key == "split" || key == "strict") continue;
      if (rows.size() == 1 && &result == &results.front()) rows.front().push_back(key);
      row.push_back(value.is_number_float() ? fmt::format("{:.6g}", value.get<double>())
                                            : plain(value));
    }
    rows.push_back(std::move(row));
  }
  print_out(aligned_table(rows, 1));
}

void check_plot(const po::variables_map& values) {
  if (!values.count("plot")) return;
  std::vector<std::string> inputs;
  if (values.count("input")) inputs.push_back(values["input"].as<std::string>());
  const std::string file = output_of(values, "plot", inputs);
  if (!file.ends_with(".svg"))
    throw UsageError("--plot {}: expected a name that ends in .svg", file);
  if (!values["all-checkpoints"].as<bool>() &&
      (!values.count("checkpoint") ||
       values["checkpoint"].as<std::vector<std::string>>().size() < 2))
    throw UsageError(kNoCurve);
}

void plot_results(const std::vector<Json>& results, const std::filesystem::path& file) {
  if (results.size() < 2) throw UsageError(kNoCurve);
  std::vector<Json> sorted = results;
  std::ranges::stable_sort(sorted, {},
                           [](const Json& result) { return result["iteration"].get<double>(); });
  report::Chart chart{
      .names = {plain(sorted.front()["task"])}, .x_label = "iterations", .panels = {}};
  for (const auto& [key, value] : sorted.front().items()) {
    if (!value.is_number_float() || key == "seconds") continue;
    report::Series series;
    for (const Json& result : sorted)
      series.points.emplace_back(result["iteration"].get<double>(), result[key].get<double>());
    chart.panels.push_back({.title = key, .series = {std::move(series)}});
  }
  write_file_atomically(file, report::to_svg(chart));
}

}  // namespace trireme
