// Shell scripts: the lexer, which makes simple commands of text, and where quotes, braces and
// here-documents end; and the interpreter, with its variables and the expansion of words.
#pragma once

#include <cctype>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::convert::shell {

// ---- the lexer: text in, simple commands out, nothing expanded

// Marks for unknown values: what the environment, the job scheduler or another program would
// provide stays in the text as a marked word, so an unknown value is an error only where a flag
// needs it.

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

/// A here-document: the text that a command reads from the lines after it; or the word of `<<<`.
struct HereDocument {
  std::string text;
  bool expands = true;   ///< false where the end word is quoted
  bool is_word = false;  ///< the text is a word, with quotes
};

/// One simple command. Words keep their quotes and variables; `NAME=( ... )` is one word.
struct Command {
  std::vector<std::string> words;
  Link link = Link::next;
  int line = 0;             ///< counted from 1
  std::string written_to;   ///< the word after `>` or `>>`, "" without one
  bool appends = false;     ///< it is `>>`
  bool background = false;  ///< ended by `&`
  bool pattern = false;     ///< ended by a `)` without a `(`: the last word is a pattern of a case
  std::optional<HereDocument> here;
};

/// The commands of `text` in order. Keywords such as `if`, `then` and `{` stay the first words of
/// the command that follows them, also the `(` of a subshell; its `)` is a command. `((a > b))`
/// becomes the words "((" and "a > b"; all of `[[ ... ]]` is one command. A comment line `#SBATCH
/// words` becomes a command that begins with "#SBATCH". Lines count from `first_line`. Throws
/// DataError with the line for an unclosed quote or bracket.
std::vector<Command> read_commands(std::string_view text, const std::string& file,
                                   int first_line = 1);

/// The words that the braces of `raw`, not yet expanded, expand to: `a{1,2}` or `{1..3}`.
std::vector<std::string> expand_lists(const std::string& raw);

/// The length of the variable name at the start of `text`: a name, or one special character like
/// `@`.
std::size_t name_length(std::string_view text);

/// Limit on the bytes of a word: more than the kernel's on a command line.
inline constexpr std::size_t kMaxWordBytes = std::size_t{4} << 20;

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

// ---- where quotes, braces and here-documents of a shell script end

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

// ---- the interpreter

// It starts no program: it finds the commands that a script would run.
//
// It evaluates assignments, arrays (also by key), quotes, arithmetic, defaults, prefixes and
// suffixes, functions, `source`, positional arguments, other scripts that exist (`bash X.sh 8`,
// `sbatch X.sh`), here-documents, `sed` on a template and conditions on known values; loops on
// known values are followed pass by pass. Values that the environment or another program would
// provide, and variables that only an undecided condition sets, are marked as unknown.

/// Variables given on the command line: they override the script's own assignments.
using Definitions = std::map<std::string, std::string, std::less<>>;

/// Values by name: a scalar has one element.
using Values = std::map<std::string, std::vector<std::string>, std::less<>>;

/// The variables at one point of a script, with its positional arguments `$1`, `$@` and `$#`. Those
/// of the definitions are fixed: set(), append() and unset() do not change them.
class Variables {
 public:
  /// Starts with `definitions`, `$0` = `file`, and `environment`: the variables exported by the
  /// script that starts this one.
  Variables(const Definitions& definitions, const std::string& file,
            const Values& environment = {});

  const Values& values() const { return values_; }
  /// Whether `name` has a value; a mark counts.
  bool contains(std::string_view name) const { return values_.contains(name); }
  bool has_arguments() const { return contains("1") || contains("@"); }

  void set(const std::string& name, std::vector<std::string> elements);
  /// `NAME=text`: of an array only the first element.
  void set_text(const std::string& name, const std::string& text);
  /// `NAME[INDEX]=text`, where `element` is `NAME[INDEX]`: the array becomes `whole`.
  void set_element(const std::string& name, std::vector<std::string> whole,
                   const std::string& element, const std::string& text);
  /// `NAME+=( ... )`: appends `elements` to the array.
  void append(const std::string& name, const std::vector<std::string>& elements);
  /// `NAME+=text`: appends `text` to the scalar, or to the first element of an array.
  void append(const std::string& name, const std::string& text);
  void unset(const std::string& name);
  /// Forgets what set_element() stored under keys.
  void unset_elements(const std::string& name);
  /// The values of `name` and of its elements, for put_back().
  Values values_of(const std::string& name) const;
  void put_back(const std::string& name, Values values);
  /// Whether `name` is given by the definitions.
  bool is_fixed(const std::string& name) const { return fixed_.contains(name); }

  /// `export NAME`: started programs inherit the variable.
  void export_name(const std::string& name) { exported_.insert(name); }
  /// The variables that are exported, and those called `more`.
  Values exported(const std::vector<std::string>& more) const;

  /// Sets the positional arguments for a call of a function or script, `words` with its name first;
  /// returns the caller's arguments for restore_arguments().
  Values replace_arguments(const std::vector<std::string>& words);
  void restore_arguments(Values outer);
  /// The variables changed since the last call, "@" for the arguments.
  std::set<std::string> take_changed() { return std::exchange(changed_, {}); }
  /// Counts `names` as changed.
  void add_changed(const std::set<std::string>& names) {
    changed_.insert(names.begin(), names.end());
  }

  /// The arguments become unknown, shown as `mark`.
  void forget_arguments(const std::string& mark);

 private:
  Values values_;
  std::set<std::string, std::less<>> fixed_;
  std::set<std::string, std::less<>> exported_;
  std::set<std::string> changed_;
};

/// The variables that an arithmetic expression reads and assigns, by NAME or NAME[INDEX].
struct Names {
  std::function<std::optional<std::string>(std::string_view)> value_of;
  /// Without a value: the expression assigns one that is unknown.
  std::function<void(const std::string&, std::optional<std::int64_t>)> assign;
};

/// The value of `expression`: whole numbers, names, brackets and the operators of C and `**`; its
/// assignments are made. Empty if a name has no whole number, a result overflows 64 bits, on a
/// division by zero and on any other syntax.
std::optional<std::int64_t> evaluate(std::string_view expression, const Names& names);

/// Expands words with the values of variables. Unknown values stay as marks.
class Expander {
 public:
  /// `output_of` returns what the commands of `$( ... )` print; empty if that is unknown.
  using OutputOf = std::function<std::optional<std::string>(const std::string&)>;
  /// `assign` sets the variable of `${NAME:=word}` and `$((NAME = 1))`; without a value it becomes
  /// unknown.
  using Assign = std::function<void(const std::string& name, std::optional<std::string> value)>;
  Expander(const Values& variables, OutputOf output_of, Assign assign)
      : variables_(variables), output_of_(std::move(output_of)), assign_(std::move(assign)) {}

  /// The words that `raw` expands to: none, one, or several if an unquoted variable contains blanks
  /// or "${NAME[@]}" is an array. Throws DataError for a word beyond 4 MiB.
  std::vector<std::string> words(std::string_view raw);

  /// The text that `raw` expands to without word splitting, as in an assignment.
  std::string text(std::string_view raw);

  /// The pattern that `raw` expands to, or the regular expression: its quoted characters are
  /// escaped, as they stand for themselves.
  std::string pattern(std::string_view raw, bool is_regex = false);

  /// The value of `expression`, with its assignments made; empty if it is unknown.
  std::optional<std::int64_t> value_of(std::string_view expression);

  /// Whether `((expression))` is nonzero; empty if that is unknown.
  std::optional<bool> holds(std::string_view expression);

  /// The fields into which `text` is split.
  std::vector<std::string> fields(std::string_view text);

  /// The text of a here-document, in which quotes have no meaning.
  std::string here_text(std::string_view raw);

 private:
  enum class Quotes { split, join, here };

  /// An expander for the nested text of `${NAME:-text}` or `$((text))`. Throws DataError beyond
  /// kMaxNesting.
  Expander inner() const;

  void expand(std::string_view raw, Quotes quotes);
  std::size_t expand_dollar(std::string_view raw, std::size_t at, bool quoted);
  void expand_braces(std::string_view inside, bool quoted);
  void put_array(const std::vector<std::string>& values, bool quoted, bool joins = false);
  void put_value(std::string_view value, bool quoted);
  void put(char c);
  void put_literal(char c);
  void end_word();
  std::optional<std::vector<std::string>> find(std::string_view name) const;
  std::string arithmetic(std::string_view expression);
  std::optional<std::string> element(std::string_view name, std::string_view index);
  std::optional<std::string> edited(const std::string& text, std::string_view operation);
  std::optional<std::string> substring(const std::string& text, std::string_view range);
  std::optional<std::vector<std::string>> indirect(std::string_view name) const;
  std::optional<std::size_t> length_of(std::string_view inside) const;
  std::optional<std::vector<std::string>> slice(const std::vector<std::string>& values,
                                                std::string_view range, int first);

  const Values& variables_;
  OutputOf output_of_;
  Assign assign_;
  std::string_view escaped_;  // characters that get a backslash where they are quoted
  Quotes quotes_ = Quotes::join;
  std::vector<std::string> words_;
  std::string word_;
  bool has_word_ = false;
  bool plain_quotes_ = false;   // within double quotes a `'` is a plain character
  bool splits_blanks_ = false;  // blanks of the text itself separate words, as in `${A:-b c}`
  std::size_t size_ = 0;
  int nesting_ = 0;
};

/// The output of `sed` for `text` with one `command`, "s/NAME/value/" or "s/NAME/value/g" with any
/// delimiter. Empty for other commands and where NAME is a regular expression.
std::optional<std::string> substitute(std::string_view command, std::string_view text);

/// A command with its words expanded.
struct RunCommand {
  std::vector<std::string> words;
  std::string file;
  int line = 0;  ///< in `file`
};

/// The effects of a script.
struct Run {
  std::vector<RunCommand> commands;          ///< without shell builtins
  std::map<std::string, std::string> files;  ///< written by `cat << END`, echo and sed
  std::vector<std::string> sbatch;           ///< the words of its #SBATCH lines
};

/// Interprets the script `text`, which errors call `file`; sourced and started scripts are searched
/// in its folder. `arguments` are its `$1`, `$2`, ...; if they are empty, the positional arguments
/// are unknown. `bash -c "..."` and `eval` are interpreted too. Throws DataError if the text is no
/// shell script, or exceeds the limits on depth and length.
Run follow(std::string_view text, const std::filesystem::path& file,
           const Definitions& definitions = {}, const std::vector<std::string>& arguments = {});

}  // namespace trireme::convert::shell
