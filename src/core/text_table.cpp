#include "core/text_table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {
namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// The widths of the columns; cells that are not known become "-".
std::vector<std::size_t> measure(TableRows& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].empty()) row[i] += '-';
      widths[i] = std::max(widths[i], row[i].size());
    }
  return widths;
}

std::string padded(const std::string& cell, std::size_t width, bool is_text) {
  return is_text ? fmt::format("{:<{}}", cell, width) : fmt::format("{:>{}}", cell, width);
}

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  return fmt::format("\"{}\"", replaced(cell, "\"", "\"\""));
}

}  // namespace

std::string aligned_table(const TableRows& table, std::size_t texts) {
  TableRows rows = table;
  const std::vector<std::size_t> widths = measure(rows);
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += (i > 0 ? "  " : "") + padded(row[i], widths[i], i < texts);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string markdown_table(const TableRows& table, std::size_t texts) {
  TableRows rows = table;
  for (auto& row : rows)
    for (std::string& cell : row) cell = replaced(cell, "|", "\\|");
  std::vector<std::size_t> widths = measure(rows);
  std::vector<std::string> rule;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    widths[i] = std::max<std::size_t>(widths[i], 3);
    rule.push_back(std::string(widths[i] - 1, '-') + (i < texts ? '-' : ':'));
  }
  rows.insert(rows.begin() + 1, rule);
  std::string text;
  for (const auto& row : rows) {
    text += "|";
    for (std::size_t i = 0; i < row.size(); ++i)
      text += fmt::format(" {} |", padded(row[i], widths[i], i < texts));
    text += "\n";
  }
  return text;
}

std::string csv_table(const TableRows& rows) {
  std::string text;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i)
      text += csv_cell(row[i]) + (i + 1 < row.size() ? "," : "\n");
  return text;
}

}  // namespace trireme
