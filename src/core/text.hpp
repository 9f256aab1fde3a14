// Text for people: suggestions for misspelled words, counts with their noun, tables.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
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

/// Columns as wide as their widest cell: the first `texts` to the left, the others, numbers, to the
/// right. What is not known is "-". Lines end in newlines, here and below.
std::string aligned_table(const TableRows& rows, std::size_t texts);

/// The same in Markdown.
std::string markdown_table(const TableRows& rows, std::size_t texts);

/// Comma-separated values. Source: RFC 4180.
std::string csv_table(const TableRows& rows);

}  // namespace trireme
