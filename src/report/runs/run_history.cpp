#include "report/runs/run_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"
#include "report/follow/follower.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

/// Calls `take` with every line of the file, with or without a newline at its end.
void for_each_line(const fs::path& path, const std::function<void(const std::string&)>& take) {
  errno = 0;
  std::ifstream file(path);
  if (!file) throw IoError("cannot read '{}': {}", path.string(), std::strerror(errno));
  for (std::string line; std::getline(file, line);) take(line);
  if (file.bad()) throw IoError("cannot read '{}'", path.string());
}

template <typename Row>
void append(std::vector<Row>& rows, const Row& row) {
  while (!rows.empty() && rows.back().iteration >= row.iteration) rows.pop_back();
  rows.push_back(row);
}

std::optional<double> real(const std::optional<std::int64_t>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

TrainRow row_of(const TrainPoint& point) {
  return {.iteration = point.iteration,
          .loss = point.loss,
          .ms = point.ms,
          .tokens_per_second = point.tokens_per_second,
          .tflops = point.tflops,
          .mfu = point.mfu,
          .learning_rate = point.learning_rate,
          .grad_norm = point.grad_norm,
          .global_batch = real(point.global_batch),
          .samples = real(point.samples),
          .tokens = real(point.tokens)};
}

void read_metrics(const fs::path& path, RunHistory& history) {
  RunState run;
  for_each_line(path, [&](const std::string& line) {
    run.evaluation.reset();
    if (run.take(line)) append(history.train, row_of(*run.train));
    if (const auto& done = run.evaluation)
      append(history.validation,
             EvalRow{done->iteration, done->loss, real(done->samples), real(done->tokens)});
  });
  history.start = run.start;
  history.memory = run.memory;
}

void read_log(const fs::path& path, RunHistory& history) {
  MegatronLog log;
  for_each_line(path, [&](const std::string& line) {
    if (const auto row = log.take(line)) append(history.train, *row);
  });
  history.memory = log.memory();
}

}  // namespace

std::vector<TrainRow> without_repeated(const std::vector<TrainRow>& rows) {
  std::vector<TrainRow> kept;
  for (const TrainRow& row : rows) append(kept, row);
  return kept;
}

RunHistory read_run(const fs::path& path) {
  RunHistory history{.name = path.string()};
  std::error_code unreadable;  // reading it will say why
  if (fs::is_directory(path, unreadable)) {
    if (!fs::exists(path / "metrics.jsonl"))
      throw IoError("'{}' is no run folder: it has no metrics.jsonl", path.string());
    read_metrics(path / "metrics.jsonl", history);
    if (fs::exists(path / "deck.yaml", unreadable)) history.deck = path / "deck.yaml";
  } else if (path.extension() == ".jsonl") {
    read_metrics(path, history);
  } else {
    read_log(path, history);
  }
  return history;
}

// ---------------------------------------------------------------------------- summaries

namespace {

/// The row with the median time, the faster one of an even number.
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

RunSummary summarize(const RunHistory& run) {
  RunSummary summary{.name = run.name,
                     .iterations = run.train.empty() ? 0 : run.train.back().iteration};
  if (const TrainRow* usual = usual_row(run.train)) {
    summary.ms = usual->ms;
    summary.tokens_per_second = usual->tokens_per_second;
    summary.tflops = usual->tflops;
    summary.mfu = usual->mfu;
  }
  for (const TrainRow& row : run.train) {
    if (!row.loss) continue;
    summary.last_loss = row.loss;
    summary.best_loss = std::min(summary.best_loss.value_or(*row.loss), *row.loss);
  }
  if (run.memory > 0) summary.memory = run.memory;
  return summary;
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
