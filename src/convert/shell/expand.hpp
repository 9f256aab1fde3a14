// The variables of a script, and the expansion of words: quotes, variables, arithmetic, command
// substitution. An unknown value stays in the text as a mark (lexer.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::convert::shell {

/// Variables that are given beside the script: they win over its own assignments.
using Definitions = std::map<std::string, std::string, std::less<>>;

/// Values by name: a scalar has one element.
using Values = std::map<std::string, std::vector<std::string>, std::less<>>;

/// The variables at one place of a script, its arguments `$1`, `$@` and `$#` among them. Those of
/// the definitions are fixed: set(), append() and unset() leave them alone.
class Variables {
 public:
  /// Those of `definitions`, and what the script `file` is called. `environment` are variables that
  /// a script which starts this one has exported.
  Variables(const Definitions& definitions, const std::string& file,
            const Values& environment = {});

  const Values& values() const { return values_; }
  /// Whether anything is known of `name`; a mark (unknown.hpp) counts.
  bool contains(std::string_view name) const { return values_.contains(name); }
  bool has_arguments() const { return contains("1") || contains("@"); }

  void set(const std::string& name, std::vector<std::string> elements);
  /// `NAME+=( ... )`: puts `elements` behind those of the array.
  void append(const std::string& name, const std::vector<std::string>& elements);
  /// `NAME+=text`: puts `text` behind the scalar's.
  void append(const std::string& name, const std::string& text);
  void unset(const std::string& name);

  /// `export NAME`: programs that are started get the variable.
  void export_name(const std::string& name) { exported_.insert(name); }
  /// The variables that are exported.
  Values exported() const;

  /// Gives a function, or a script, that is called as `words`, its name first, arguments of its
  /// own; returns those of the caller, which restore_arguments() takes back.
  Values replace_arguments(const std::vector<std::string>& words);
  void restore_arguments(Values outer);

 private:
  Values values_;
  std::set<std::string, std::less<>> fixed_;
  std::set<std::string, std::less<>> exported_;
};

/// Expands words with the values of variables. What is not known stays as a mark (unknown.hpp).
class Expander {
 public:
  /// `output_of` gives what the commands of `$( ... )` print, or nothing when that is not known.
  using OutputOf = std::function<std::optional<std::string>(const std::string&)>;
  Expander(const Values& variables, OutputOf output_of)
      : variables_(variables), output_of_(std::move(output_of)) {}

  /// The words that `raw` becomes: none, one or, where an unquoted variable holds blanks or
  /// "${NAME[@]}" an array, several. Throws DataError for a word that grows without end.
  std::vector<std::string> words(std::string_view raw);

  /// The one text that `raw` becomes where blanks do not split, as in an assignment.
  std::string text(std::string_view raw);

  /// Whether the number that `((expression))` asks for is not 0, or its one comparison holds; empty
  /// where that is not known.
  std::optional<bool> holds(std::string_view expression);

  /// A here-document's text, in which quotes mean nothing.
  std::string here_text(std::string_view raw);

 private:
  enum class Quotes { split, join, here };

  /// One for the text within another's `${NAME:-text}` or `$((text))`. Throws DataError where it
  /// would be nested deeper than kMaxNesting.
  Expander inner() const;

  void expand(std::string_view raw, Quotes quotes);
  std::size_t expand_dollar(std::string_view raw, std::size_t at, bool quoted);
  void expand_braces(std::string_view inside, bool quoted);
  void put_array(const std::vector<std::string>& values, bool quoted);
  void put_value(std::string_view value, bool quoted);
  void put(char c);
  void end_word();
  std::optional<std::vector<std::string>> find(std::string_view name) const;
  std::string arithmetic(std::string_view expression);

  const Values& variables_;
  OutputOf output_of_;
  Quotes quotes_ = Quotes::join;
  std::vector<std::string> words_;
  std::string word_;
  bool has_word_ = false;
  std::size_t size_ = 0;
  int nesting_ = 0;
};

/// The value of `expression`: whole numbers, names, + - * / % ** and brackets. `value_of` gives the
/// text of a name. Empty where a name has no whole number, a division is by zero, a result leaves
/// 64 bits, or there is anything else in it.
std::optional<std::int64_t> evaluate(
    std::string_view expression,
    const std::function<std::optional<std::string>(std::string_view)>& value_of);

/// What `sed` prints for `text` with the one `command`, "s/NAME/value/" or "s/NAME/value/g"; any
/// sign may stand for the `/`. Empty where the command is another, or NAME is a pattern.
std::optional<std::string> substitute(std::string_view command, std::string_view text);

}  // namespace trireme::convert::shell
