// The lexer of shell scripts: text in, simple commands out, nothing expanded. And the marks for
// unknown values: what the environment, the job scheduler or another program would provide stays in
// the text as a marked word, so an unknown value is an error only where a flag needs it.
#pragma once

#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::convert::shell {

inline constexpr char kUnknownBegin = '\x01';
inline constexpr char kUnknownEnd = '\x02';

inline constexpr std::size_t kNone = std::string_view::npos;

/// Whether `c` may stand in a variable's name.
inline bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// The mark for the unknown value of `source`, such as "$MASTER_ADDR" or "$(hostname)".
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

/// `text` on one line with each mark shown as its source, for messages.
inline std::string shown(std::string_view text) {
  std::string words;
  for (const char c : text)
    if (c != kUnknownBegin && c != kUnknownEnd)
      words += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
  return words;
}

/// How a command follows the one before it.
enum class Link { next, if_succeeded, if_failed, pipe };

/// A here-document: the text that a command reads from the lines after it.
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
  bool pattern = false;    ///< ended by a `)` without a `(`: the last word is the pattern of a case
  std::optional<HereDocument> here;
};

/// The commands of `text` in order. Keywords such as `if`, `then` and `{` stay the first words of
/// the command that follows them. A comment line `#SBATCH words` becomes a command that begins with
/// "#SBATCH". Lines count from `first_line`. Throws DataError with the line for an unclosed quote
/// or bracket.
std::vector<Command> read_commands(std::string_view text, const std::string& file,
                                   int first_line = 1);

/// Limit on the nesting of quotes, brackets and defaults.
inline constexpr int kMaxNesting = 64;

/// The position of the `=` if `text` begins with `NAME=`, `NAME+=` or `NAME[...]=`.
std::optional<std::size_t> assignment_at(std::string_view text);

/// The end, one past `)`, of the `$( ... )` or `( ... )` whose `(` is at `open`; npos if it is not
/// closed. Brackets in nested quotes and here-documents do not count. `nesting` is the number of
/// enclosing brackets; throws DataError beyond kMaxNesting.
std::size_t end_of_brackets(std::string_view text, std::size_t open, int nesting = 0);

/// The end, one past `>`, of a placeholder for the reader, such as `<path to the data>`, at `at`;
/// npos if none begins there (it may be a redirection). In quotes only a text with spaces counts.
std::size_t end_of_placeholder(std::string_view text, std::size_t at, bool quoted);

}  // namespace trireme::convert::shell
