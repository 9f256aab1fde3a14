#include "core/text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/clock.hpp"

namespace trireme {
namespace {

// Longer words are no typing errors, and the distance takes quadratic time.
constexpr std::size_t kLongestWord = 64;
// Letters at the beginning of two words that are taken for forms of one.
constexpr std::size_t kStem = 4;

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between prefixes: two back, one back, current.
  std::vector<int> before(b.size() + 1);
  std::vector<int> previous(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int substitution = lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1;
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + substitution});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(row);
  }
  return previous[b.size()];
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.size() > kLongestWord) return {};
  std::string_view best;
  int best_distance = std::max(1, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  // Another ending of the same word: matrix, matrices.
  const auto same_stem = [&](std::string_view candidate) {
    std::size_t common = 0;
    while (common < std::min(word.size(), candidate.size()) &&
           lower(word[common]) == lower(candidate[common]))
      ++common;
    return common >= kStem && 3 * common >= 2 * word.size() &&
           candidate.size() <= word.size() + kStem;
  };
  const auto found = std::ranges::find_if(candidates, same_stem);
  return found == candidates.end() ? std::string_view{} : *found;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates) {
  const std::string_view meant = nearest(word, candidates);
  return meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant);
}

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

// ---------------------------------------------------------------------------- progress

namespace {

// Seconds.
constexpr double kFirst = 2.0, kTerminalInterval = 0.2, kFileInterval = 30.0;

std::function<double()> real_clock() {
  return [watch = Stopwatch()] { return watch.seconds(); };
}

/// "12.3M documents", "512 documents", "1 document"; bytes as "12.3 MB".
std::string amount(double count, const std::string& unit) {
  if (unit == "B") return fmt::format("{:.1f} MB", 1e-6 * count);
  std::string number = fmt::format("{:.0f}", count);
  if (count >= 1e9)
    number = fmt::format("{:.1f}B", 1e-9 * count);
  else if (count >= 1e6)
    number = fmt::format("{:.1f}M", 1e-6 * count);
  else if (count >= 1e4)
    number = fmt::format("{:.1f}k", 1e-3 * count);
  else if (count > 0 && count < 9.95)
    number = fmt::format("{:.2g}", count);
  return fmt::format("{} {}{}", number, unit, number == "1" ? "" : "s");
}

}  // namespace

std::string progress_line(const std::string& what, const std::string& unit, double done,
                          double total, double seconds) {
  const double rate = seconds > 0 ? done / seconds : 0;
  const bool known = total > 0 && done <= total;
  std::string text = what + ": ";
  if (known) text += fmt::format("{:.1f} % | ", 100 * done / total);
  text += amount(done, unit);
  if (known) text += " of " + amount(total, unit);
  text += fmt::format(" | {}/s", amount(rate, unit));
  if (known && rate > 0) text += " | ETA " + human_duration((total - done) / rate);
  return text;
}

Progress::Progress(std::string what, std::string unit, double total, std::FILE* out,
                   std::function<double()> clock)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      out_(out),
      clock_(clock ? std::move(clock) : real_clock()),
      terminal_(out && ::isatty(::fileno(out)) == 1),
      next_(terminal_ ? kFirst : kFileInterval) {}

Progress::~Progress() {
  if (!shown_) return;
  std::fputs("\r\033[K", out_);
  std::fflush(out_);
}

void Progress::update(double done) {
  if (!out_) return;
  const double seconds = clock_();
  if (seconds < next_) return;
  next_ = seconds + (terminal_ ? kTerminalInterval : kFileInterval);
  const std::string line = progress_line(what_, unit_, done, total_, seconds);
  // A closed standard error does not stop the work.
  std::fputs((terminal_ ? "\r\033[K" + line : line + "\n").c_str(), out_);
  std::fflush(out_);
  shown_ = terminal_;
}

}  // namespace trireme
