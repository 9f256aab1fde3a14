#include "report/summary/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trireme::report {
namespace {

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
    cells.push_back(value ? fmt::format("{:.{}f}", *value / column.unit, column.digits) : "-");
  }
  return cells;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string csv_line(const Cells& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    const bool quoted = cell.find_first_of(",\"\r\n") != std::string::npos;
    line += (line.empty() ? "" : ",") + (quoted ? '"' + replaced(cell, "\"", "\"\"") + '"' : cell);
  }
  return line + "\n";
}

std::string to_csv(const std::vector<RunSummary>& runs) {
  std::string text = csv_line(titles(/*for_people=*/false));
  for (const RunSummary& run : runs) {
    Cells cells = {run.name, std::to_string(run.iterations)};
    for (const Column& column : kColumns) {
      const auto& value = run.*column.value;
      cells.push_back(value ? fmt::format("{}", *value) : "");
    }
    text += csv_line(cells);
  }
  return text;
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

/// `cell` in a column of this width: names to the left, numbers to the right.
std::string padded(const std::string& cell, std::size_t column, std::size_t width) {
  const std::string space(width - cell.size(), ' ');
  return column == 0 ? cell + space : space + cell;
}

/// Every cell of a line; each is as wide as its column's widest.
std::string aligned_line(const Cells& cells, const std::vector<std::size_t>& widths,
                         bool markdown) {
  std::string line = markdown ? "|" : "";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string cell = padded(cells[i], i, widths[i]);
    line += markdown ? fmt::format(" {} |", cell) : fmt::format("{}{}", i > 0 ? "  " : "", cell);
  }
  return line + "\n";
}

std::string to_aligned(const std::vector<RunSummary>& runs, bool markdown) {
  std::vector<Cells> rows = {titles(/*for_people=*/true)};
  for (const RunSummary& run : runs) rows.push_back(cells_for_people(run));
  std::vector<std::size_t> widths(rows[0].size(), 0);
  for (Cells& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (markdown) row[i] = replaced(row[i], "|", "\\|");
      widths[i] = std::max(widths[i], row[i].size());
    }
  if (markdown) {
    Cells rules;
    for (std::size_t i = 0; i < widths.size(); ++i)
      rules.push_back(std::string(widths[i] - 1, '-') + (i == 0 ? '-' : ':'));
    rows.insert(rows.begin() + 1, rules);
  }
  std::string text;
  for (const Cells& row : rows) text += aligned_line(row, widths, markdown);
  return text;
}

}  // namespace

std::string to_table(const std::vector<RunSummary>& runs, TableFormat format) {
  if (format == TableFormat::csv) return to_csv(runs);
  if (format == TableFormat::json) return to_json(runs);
  return to_aligned(runs, format == TableFormat::markdown);
}

}  // namespace trireme::report
