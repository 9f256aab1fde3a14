// Text for people: suggestions for misspelled words, counts with their noun, tables, progress.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Number of insertions, deletions, substitutions and swaps of neighbours between two words,
/// ignoring case.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, or "" when none is near enough to be what was meant.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

/// "; did you mean 'x'?" for the nearest candidate, or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

/// "1 rank", "2 ranks", "0 batches"; the noun is regular and in the singular.
template <std::integral Count>
std::string counted(Count count, std::string_view noun) {
  const bool hissing = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : hissing ? "es" : "s");
}

/// Rows of equally many cells, the first of which are the names of the columns. An empty cell is
/// what is not known.
using TableRows = std::vector<std::vector<std::string>>;

/// The forms of a table that a program prints.
enum class TableFormat { text, csv, markdown, json };

/// Columns as wide as their widest cell: the first `texts` to the left, the others, numbers, to the
/// right. What is not known is "-". Lines end in newlines, here and below.
std::string aligned_table(const TableRows& rows, std::size_t texts);

/// The same in Markdown.
std::string markdown_table(const TableRows& rows, std::size_t texts);

/// Comma-separated values. Source: RFC 4180.
std::string csv_table(const TableRows& rows);

// ---------------------------------------------------------------------------- progress of long
// work

/// A progress meter. On a terminal it shows one line after two seconds and rewrites it; elsewhere
/// it prints a line every 30 seconds. Not thread-safe.
class Progress {
 public:
  /// `what` is the work ("tokenizing"), `unit` what is counted ("document"; "B" for bytes, shown as
  /// MB), `total` how many there are, 0 when unknown. `out` is where lines go, null for nowhere
  /// (--quiet). `clock` returns seconds since the start of the work; a real clock by default.
  Progress(std::string what, std::string unit, double total, std::FILE* out = stderr,
           std::function<double()> clock = {});
  /// Removes the line from a terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of the total are done.
  void update(double done);

 private:
  const std::string what_, unit_;
  const double total_;
  std::FILE* const out_;
  const std::function<double()> clock_;
  const bool terminal_;
  double next_;         ///< seconds at which the next line is due
  bool shown_ = false;  ///< a line is on the terminal
};

/// "tokenizing: 43.1 % | 12.3M of 28.5M documents | 1.2M documents/s | ETA 12s"; without a total,
/// or beyond it, "tokenizing: 12.3M documents | 1.2M documents/s".
std::string progress_line(const std::string& what, const std::string& unit, double done,
                          double total, double seconds);

}  // namespace trireme
