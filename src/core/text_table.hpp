// Tables of text, for people and for programs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme {

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
