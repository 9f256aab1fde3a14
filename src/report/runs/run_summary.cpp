#include "report/runs/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"
#include "report/follow/run_state.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

/// The row whose time is the median; of an even number the faster. Its other figures belong to it.
const TrainRow* usual_row(const std::vector<TrainRow>& rows) {
  std::vector<const TrainRow*> timed;
  for (const TrainRow& row : rows)
    if (row.ms) timed.push_back(&row);
  if (timed.empty()) return nullptr;
  const auto middle = timed.begin() + static_cast<std::ptrdiff_t>((timed.size() - 1) / 2);
  std::nth_element(timed.begin(), middle, timed.end(),
                   [](const TrainRow* a, const TrainRow* b) { return *a->ms < *b->ms; });
  return *middle;
}

/// Calls `take` with every line of the file, the last one though nothing ends it.
void for_each_line(const fs::path& path, const std::function<void(const std::string&)>& take) {
  errno = 0;
  std::ifstream file(path);
  if (!file) throw IoError("cannot read '{}': {}", path.string(), std::strerror(errno));
  for (std::string line; std::getline(file, line);) take(line);
  if (file.bad()) throw IoError("cannot read '{}'", path.string());
}

std::optional<double> known(double bytes) {
  return bytes > 0 ? std::optional(bytes) : std::nullopt;
}

RunSummary summarize_metrics(const std::string& name, const fs::path& path) {
  RunState run;
  std::vector<TrainRow> rows;
  for_each_line(path, [&](const std::string& line) {
    if (!run.take(line)) return;
    const TrainPoint& train = *run.train;
    rows.push_back(
        {train.iteration, train.loss, train.ms, train.tokens_per_second, train.tflops, train.mfu});
  });
  RunSummary summary = summarize(name, rows);
  summary.memory = known(run.memory);
  return summary;
}

RunSummary summarize_log(const std::string& name, const fs::path& path) {
  MegatronLog log;
  std::vector<TrainRow> rows;
  for_each_line(path, [&](const std::string& line) {
    if (auto row = log.take(line)) rows.push_back(*row);
  });
  RunSummary summary = summarize(name, rows);
  summary.memory = known(log.memory());
  return summary;
}

// ---------------------------------------------------------------------------- tables

using Cells = std::vector<std::string>;

/// A column with a number: its names for people and for programs, and how people see it.
struct Column {
  const char* title;
  const char* key;
  std::optional<double> RunSummary::*value;
  double unit;
  int digits;
};
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr Column kColumns[] = {
    {"loss", "last_loss", &RunSummary::last_loss, 1, 6},
    {"best loss", "best_loss", &RunSummary::best_loss, 1, 6},
    {"ms/iteration", "ms_per_iteration", &RunSummary::ms, 1, 1},
    {"tokens/s", "tokens_per_second", &RunSummary::tokens_per_second, 1, 0},
    {"TFLOP/s/GPU", "tflops_per_gpu", &RunSummary::tflops, 1, 3},
    {"memory GiB", "memory_bytes", &RunSummary::memory, kGiB, 2},
    {"MFU %", "mfu", &RunSummary::mfu, 0.01, 1},
};

Cells titles(bool for_people) {
  Cells cells = {for_people ? "run" : "name", "iterations"};
  for (const Column& column : kColumns) cells.push_back(for_people ? column.title : column.key);
  return cells;
}

Cells cells_for_people(const RunSummary& run) {
  Cells cells = {run.name, std::to_string(run.iterations)};
  for (const Column& column : kColumns) {
    const auto& value = run.*column.value;
    cells.push_back(value ? fmt::format("{:.{}f}", *value / column.unit, column.digits) : "");
  }
  return cells;
}

TableRows rows_for_people(const std::vector<RunSummary>& runs) {
  TableRows rows = {titles(/*for_people=*/true)};
  for (const RunSummary& run : runs) rows.push_back(cells_for_people(run));
  return rows;
}

TableRows rows_for_programs(const std::vector<RunSummary>& runs) {
  TableRows rows = {titles(/*for_people=*/false)};
  for (const RunSummary& run : runs) {
    Cells cells = {run.name, std::to_string(run.iterations)};
    for (const Column& column : kColumns) {
      const auto& value = run.*column.value;
      cells.push_back(value ? fmt::format("{}", *value) : "");
    }
    rows.push_back(cells);
  }
  return rows;
}

std::string to_json(const std::vector<RunSummary>& runs) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const RunSummary& run : runs) {
    nlohmann::ordered_json row = {{"name", run.name}, {"iterations", run.iterations}};
    for (const Column& column : kColumns)
      row[column.key] = run.*column.value ? nlohmann::ordered_json(*(run.*column.value)) : nullptr;
    table.push_back(std::move(row));
  }
  return table.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

RunSummary summarize(const std::string& name, const std::vector<TrainRow>& rows) {
  std::vector<TrainRow> kept;
  for (const TrainRow& row : rows) {
    while (!kept.empty() && kept.back().iteration >= row.iteration) kept.pop_back();
    kept.push_back(row);
  }
  RunSummary summary{.name = name, .iterations = kept.empty() ? 0 : kept.back().iteration};
  if (const TrainRow* usual = usual_row(kept)) {
    summary.ms = usual->ms;
    summary.tokens_per_second = usual->tokens_per_second;
    summary.tflops = usual->tflops;
    summary.mfu = usual->mfu;
  }
  for (const TrainRow& row : kept) {
    if (!row.loss) continue;
    summary.last_loss = row.loss;
    summary.best_loss = std::min(summary.best_loss.value_or(*row.loss), *row.loss);
  }
  return summary;
}

RunSummary summarize(const fs::path& path) {
  std::error_code unreadable;  // reading it will say why
  if (fs::is_directory(path, unreadable)) {
    if (!fs::exists(path / "metrics.jsonl"))
      throw IoError("'{}' is no run folder: it has no metrics.jsonl", path.string());
    return summarize_metrics(path.string(), path / "metrics.jsonl");
  }
  return path.extension() == ".jsonl" ? summarize_metrics(path.string(), path)
                                      : summarize_log(path.string(), path);
}

std::string to_table(const std::vector<RunSummary>& runs, TableFormat format) {
  switch (format) {
    case TableFormat::csv:
      return csv_table(rows_for_programs(runs));
    case TableFormat::json:
      return to_json(runs);
    case TableFormat::markdown:
      return markdown_table(rows_for_people(runs), 1);
    case TableFormat::text:
      break;
  }
  return aligned_table(rows_for_people(runs), 1);
}

}  // namespace trireme::report
