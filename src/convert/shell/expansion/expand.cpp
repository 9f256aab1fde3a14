// The expansion of words: quotes, `$NAME`, `$( ... )`, `$(( ... ))`.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "convert/shell/scan.hpp"
#include "convert/shell/script.hpp"
#include "core/error.hpp"

namespace trireme::convert::shell {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// What has a meaning in a pattern and in a regular expression.
constexpr std::string_view kPatternCharacters = "*?[]\\";
constexpr std::string_view kRegexCharacters = ".[]{}()*+?^$|\\";

}  // namespace

std::size_t name_length(std::string_view text) {
  if (text.empty()) return 0;
  if (!is_name(text[0])) return std::string_view("@*#?$!-").find(text[0]) == kNone ? 0 : 1;
  if (std::isdigit(static_cast<unsigned char>(text[0]))) return 1;
  std::size_t length = 0;
  while (length < text.size() && is_name(text[length])) ++length;
  return length;
}

std::vector<std::string> Expander::words(std::string_view raw) {
  expand(raw, Quotes::split);
  return std::move(words_);
}

std::string Expander::text(std::string_view raw) {
  expand(raw, Quotes::join);
  return words_.empty() ? "" : std::move(words_[0]);
}

std::string Expander::pattern(std::string_view raw, bool is_regex) {
  escaped_ = is_regex ? kRegexCharacters : kPatternCharacters;
  std::string result = text(raw);
  escaped_ = {};
  return result;
}

std::vector<std::string> Expander::fields(std::string_view text) {
  quotes_ = Quotes::split;
  put_value(text, /*quoted=*/false);
  end_word();
  return std::move(words_);
}

std::string Expander::here_text(std::string_view raw) {
  expand(raw, Quotes::here);
  return words_.empty() ? "" : std::move(words_[0]);
}

void Expander::put(char c) {
  if (++size_ > kMaxWordBytes)
    throw DataError("a word of the script grows beyond {} MiB", kMaxWordBytes >> 20);
  word_ += c;
  has_word_ = true;
}

void Expander::end_word() {
  if (has_word_) words_.push_back(std::move(word_));
  word_.clear();
  has_word_ = false;
}

// Puts a character that quotes make literal.
void Expander::put_literal(char c) {
  if (escaped_.find(c) != kNone) put('\\');
  put(c);
}

void Expander::put_value(std::string_view value, bool quoted) {
  const auto separators = find("IFS");
  const std::string_view between =
      separators && !separators->empty() && !has_unknown((*separators)[0])
          ? std::string_view((*separators)[0])
          : " \t\n\r";
  bool marked = false;
  for (const char c : value) {
    if (c == kUnknownBegin || c == kUnknownEnd) marked = c == kUnknownBegin;
    const bool separates = !quoted && !marked && quotes_ == Quotes::split;
    if (separates && between.find(c) != kNone) {
      // Each separator other than a blank ends a field, also an empty one.
      if (!is_space(c)) has_word_ = true;
      end_word();
    } else if (quoted && !marked) {
      put_literal(c);
    } else {
      put(c);
    }
  }
}

// The elements of `$@`, `${NAME[@]}`; with `joins`, of `"$*"`, as one word.
void Expander::put_array(const std::vector<std::string>& values, bool quoted, bool joins) {
  // "$@" without arguments expands to no word.
  if (values.empty() && word_.empty() && !joins) has_word_ = false;
  std::string between = " ";
  if (const auto separators = find("IFS"); joins && separators && !separators->empty())
    between = (*separators)[0].substr(0, 1);
  const bool splits = quotes_ == Quotes::split && !(joins && quoted);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0 && splits) end_word();
    if (i > 0 && !splits) put_value(between, true);
    if (quoted) has_word_ = true;
    put_value(values[i], quoted);
  }
}

std::optional<std::vector<std::string>> Expander::find(std::string_view name) const {
  const auto found = variables_.find(name == "*" ? "@" : name);
  if (found == variables_.end()) return std::nullopt;
  return found->second;
}

Expander Expander::inner() const {
  Expander expander(variables_, output_of_, assign_);
  expander.nesting_ = nesting_ + 1;
  if (expander.nesting_ > kMaxNesting)
    throw DataError("a word of the script is nested more than {} deep", kMaxNesting);
  return expander;
}

std::optional<std::int64_t> Expander::value_of(std::string_view expression) {
  // `$NAME` and `${NAME}` are expanded here, bare names by evaluate().
  const std::string text = inner().text(expression);
  const Names names{[&](std::string_view name) -> std::optional<std::string> {
                      if (const std::size_t bracket = name.find('['); bracket != kNone)
                        return element(name.substr(0, bracket),
                                       name.substr(bracket + 1, name.size() - bracket - 2));
                      const auto values = find(name);
                      if (!values) return std::nullopt;
                      return values->empty() ? "0" : (*values)[0];
                    },
                    [&](const std::string& name, std::optional<std::int64_t> value) {
                      assign_(name,
                              value ? std::optional(fmt::format("{}", *value)) : std::nullopt);
                    }};
  return evaluate(text, names);
}

std::string Expander::arithmetic(std::string_view expression) {
  const auto value = value_of(expression);
  return value ? fmt::format("{}", *value) : unknown(fmt::format("$(({}))", expression));
}

std::optional<bool> Expander::holds(std::string_view expression) {
  const auto value = value_of(expression);
  return value ? std::optional(*value != 0) : std::nullopt;
}

// Expands the `$` expression at `at`; returns the position after it.
std::size_t Expander::expand_dollar(std::string_view raw, std::size_t at, bool quoted) {
  const std::string_view rest = raw.substr(at + 1);
  if (rest.starts_with("((")) {
    const std::size_t end = end_of_brackets(raw, at + 1);
    if (end != kNone && end >= at + 5 && raw[end - 2] == ')') {
      put_value(arithmetic(raw.substr(at + 3, end - at - 5)), quoted);
      return end;
    }
  }
  if (rest.starts_with("(")) {
    const std::size_t end = std::min(end_of_brackets(raw, at + 1), raw.size());
    const std::string source(raw.substr(at + 2, std::max(end, at + 3) - at - 3));
    put_value(output_of_(source).value_or(unknown("$(" + source + ")")), quoted);
    return end;
  }
  // The old form of `$(( ... ))`.
  if (const std::size_t close = rest.find(']'); rest.starts_with("[") && close != kNone) {
    put_value(arithmetic(rest.substr(1, close - 1)), quoted);
    return at + close + 2;
  }
  if (rest.starts_with("{")) {
    const std::size_t close = end_of_braces(raw, at + 1, quoted || quotes_ == Quotes::here);
    const std::size_t end = close == kNone ? raw.size() : close - 1;
    expand_braces(raw.substr(at + 2, end - at - 2), quoted);
    return std::min(end + 1, raw.size());
  }
  const std::size_t length = name_length(rest);
  if (length == 0) {
    put('$');
    return at + 1;
  }
  const std::string_view name = rest.substr(0, length);
  const auto values = find(name);
  if (name == "@" || name == "*") {
    put_array(values.value_or(std::vector<std::string>()), quoted, name == "*");
  } else if (values) {
    if (!values->empty()) put_value((*values)[0], quoted);
  } else {
    put_value(unknown(fmt::format("${}", name)), true);
  }
  return at + 1 + length;
}

void Expander::expand(std::string_view raw, Quotes quotes) {
  quotes_ = quotes;
  words_.clear();
  word_.clear();
  has_word_ = false;
  size_ = 0;
  bool in_quotes = false;
  std::size_t begin = 0;
  if (quotes != Quotes::here && raw.starts_with('~') && (raw.size() == 1 || raw[1] == '/')) {
    const auto home = find("HOME");
    put_value(home && !home->empty() ? (*home)[0] : unknown("$HOME"), true);
    begin = 1;
  }
  for (std::size_t i = begin; i < raw.size();) {
    const char c = raw[i];
    const bool literal = in_quotes || quotes == Quotes::here;
    if (c == kUnknownBegin) {
      const std::size_t end = std::min(raw.find(kUnknownEnd, i), raw.size() - 1) + 1;
      put_value(raw.substr(i, end - i), true);
      i = end;
    } else if (const std::size_t end =
                   quotes == Quotes::here ? kNone : end_of_placeholder(raw, i, literal);
               end != kNone) {
      put_value(unknown(raw.substr(i, end - i)), true);
      i = end;
    } else if (c == '\\' && i + 1 < raw.size()) {
      const char next = raw[i + 1];
      const bool escapes = !literal || std::string_view("$`\"\\\n").find(next) != kNone;
      if (!escapes) put_literal(c);
      if (next != '\n') put_literal(next);
      i += 2;
    } else if (c == '"' && quotes != Quotes::here) {
      in_quotes = !in_quotes;
      if (in_quotes) has_word_ = true;
      ++i;
    } else if (begins_escaped_quote(raw, i) && !literal && !plain_quotes_) {
      const std::size_t end = std::min(end_of_quote(raw, i), raw.size());
      put_value(unescaped(raw.substr(i + 2, end - i - 3)), true);
      has_word_ = true;
      i = end;
    } else if (c == '$' && raw.substr(i + 1, 1) == "\"" && !literal) {
      ++i;  // `$"..."` is a text to translate
    } else if (c == '\'' && !literal && !plain_quotes_) {
      const std::size_t end = std::min(raw.find('\'', i + 1), raw.size());
      put_value(raw.substr(i + 1, end - i - 1), true);
      has_word_ = true;
      i = std::min(end + 1, raw.size());
    } else if (c == '$') {
      i = expand_dollar(raw, i, in_quotes);
    } else if (c == '`') {
      const std::size_t end = std::min(raw.find('`', i + 1), raw.size());
      const std::string source(raw.substr(i + 1, end - i - 1));
      put_value(output_of_(source).value_or(unknown("`" + source + "`")), in_quotes);
      i = std::min(end + 1, raw.size());
    } else {
      if (splits_blanks_ && !in_quotes && quotes == Quotes::split && is_space(c))
        end_word();
      else if (in_quotes)
        put_literal(c);
      else
        put(c);
      ++i;
    }
  }
  end_word();
}

}  // namespace trireme::convert::shell
