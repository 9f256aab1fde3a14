// Where quotes, brackets, braces and here-documents of a shell script end.
#pragma once

#include <string>
#include <string_view>

#include "convert/shell/script.hpp"

namespace trireme::convert::shell {

inline bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/// The end, one past it, of the mark at `at`: marks are opaque to the lexer.
std::size_t end_of_mark(std::string_view text, std::size_t at);

/// The end, one past it, of the quote that opens at `open`: `'`, `"`, a backquote, or the `$` of
/// `$'...'`; npos if it is not closed.
std::size_t end_of_quote(std::string_view text, std::size_t open, int nesting = 0);

/// The end, one past `}`, of the `${ ... }` whose `{` is at `open`; npos if it is not closed. In
/// double quotes (`quoted`) a `'` is a plain character.
std::size_t end_of_braces(std::string_view text, std::size_t open, bool quoted, int nesting = 0);

/// Whether `$'...'` begins at `at`.
inline bool begins_escaped_quote(std::string_view text, std::size_t at) {
  return text.substr(at, 2) == "$'";
}

/// The text of `$'...'` between its quotes, with its escapes replaced.
std::string unescaped(std::string_view inside);

/// The operand of `<<`: the word that ends the here-document, and how the document is read.
struct HereMark {
  std::string word;
  bool expands = true;
  bool strips_tabs = false;
};

/// Reads the operand of `<<` and moves `at` past it.
HereMark read_here_mark(std::string_view text, std::size_t& at);

/// The lines from `at` to the end word; moves `at` past that line.
std::string read_here_text(std::string_view text, const HereMark& mark, std::size_t& at);

}  // namespace trireme::convert::shell
