// Expansion of words: quotes, variables, arithmetic, what other commands print.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/shell/variables.hpp"

namespace trireme::convert::shell {

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

}  // namespace trireme::convert::shell
