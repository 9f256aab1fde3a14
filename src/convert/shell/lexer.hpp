// The lexer of shell scripts: text in, simple commands out, nothing expanded. And the marks for
// unknown values: what the environment, the job scheduler or another program would provide stays in
// the text as a marked word, so an unknown value is an error only where a flag needs it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::convert::shell {

inline constexpr char kUnknownBegin = '\x01';
inline constexpr char kUnknownEnd = '\x02';

/// The mark that stands for the value of `source`, such as "$MASTER_ADDR" or "$(hostname)".
inline std::string unknown(std::string_view source) {
  std::string mark(1, kUnknownBegin);
  // A mark within a mark would end it too early.
  for (const char c : source)
    if (c != kUnknownBegin && c != kUnknownEnd) mark += c;
  return mark + kUnknownEnd;
}

/// Whether `text` has a mark.
inline bool has_unknown(std::string_view text) {
  return text.find(kUnknownBegin) != std::string_view::npos;
}

/// `text` with each mark as its source, on one line, for people.
inline std::string shown(std::string_view text) {
  std::string words;
  for (const char c : text)
    if (c != kUnknownBegin && c != kUnknownEnd)
      words += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
  return words;
}

/// How a command follows the one before it.
enum class Link { next, if_succeeded, if_failed, pipe };

/// Text that a command reads from the lines after it.
struct HereDocument {
  std::string text;
  bool expands = true;  ///< false where the end word is quoted
};

/// One simple command. Words keep their quotes and variables; `NAME=( ... )` is one word.
struct Command {
  std::vector<std::string> words;
  Link link = Link::next;
  int line = 0;            ///< counted from 1
  std::string written_to;  ///< the word after `>` or `>>`, "" without one
  bool appends = false;    ///< it is `>>`
  bool pattern = false;    ///< a `)` without a `(` ends it: the last word is a case's pattern
  std::optional<HereDocument> here;
};

/// The commands of `text` in order. `if`, `then`, `{` and the like stay words of the command that
/// they begin. A comment line `#SBATCH words` becomes a command that begins with "#SBATCH". Lines
/// count from `first_line`. Throws DataError, with the line, for a quote or a bracket that is not
/// closed.
std::vector<Command> read_commands(std::string_view text, const std::string& file,
                                   int first_line = 1);

/// Quotes, brackets and defaults within each other: deeper is no script that a person wrote.
inline constexpr int kMaxNesting = 64;

/// Whether `text` begins with `NAME=`, `NAME+=` or `NAME[...]=`; then the place of the `=`.
std::optional<std::size_t> assignment_at(std::string_view text);

/// The end, one past `)`, of the `$( ... )` or `( ... )` whose `(` stands at `open`; npos when it
/// is not closed. Quotes and here-documents within may hold brackets. `nesting` counts the brackets
/// around; throws DataError beyond kMaxNesting.
std::size_t end_of_brackets(std::string_view text, std::size_t open, int nesting = 0);

/// The end, one past `>`, of a placeholder that a reader is to fill in, `<path to the data>`, at
/// `at`; npos where none begins there, but maybe a redirection. In quotes one is known by its
/// spaces.
std::size_t end_of_placeholder(std::string_view text, std::size_t at, bool quoted);

}  // namespace trireme::convert::shell
