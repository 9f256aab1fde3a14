// The expansion of words: quotes, `$NAME`, `$( ... )`, `$(( ... ))`, and braces: `a{1,2}` and
// `{1..3}`.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

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

// ---- braces

namespace {

// Limit on the words of one list.
constexpr std::size_t kMaxListWords = 1000;

// The end of the quote, escape or `$` expression at `at`; at + 1 for other characters.
std::size_t end_of_unit(std::string_view text, std::size_t at) {
  const char c = text[at];
  std::size_t end = at + 1;
  if (c == '\\')
    end = at + 2;
  else if (c == '\'' || c == '"' || c == '`' || begins_escaped_quote(text, at))
    end = end_of_quote(text, at);
  else if (text.substr(at, 2) == "${")
    end = end_of_braces(text, at + 1, /*quoted=*/false);
  else if (text.substr(at, 2) == "$(")
    end = end_of_brackets(text, at + 1);
  else if (c == kUnknownBegin)
    end = end_of_mark(text, at);
  return std::min(end, text.size());
}

// The numbers of `1..3`, or the letters of `a..c`; empty for another text.
std::vector<std::string> range_of(std::string_view inside) {
  const std::size_t dots = inside.find("..");
  if (dots == kNone || dots > 6 || inside.size() - dots > 8) return {};
  const std::string first(inside.substr(0, dots)), last(inside.substr(dots + 2));
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == kNone &&
           (text[0] != '0' || text.size() == 1);
  };
  const auto is_letter = [](const std::string& text) {
    return text.size() == 1 && std::islower(static_cast<unsigned char>(text[0]));
  };
  if (is_letter(first) && is_letter(last)) {
    std::vector<std::string> letters;
    const int step = first <= last ? 1 : -1;
    for (char c = first[0]; c != last[0]; c = static_cast<char>(c + step))
      letters.emplace_back(1, c);
    letters.push_back(last);
    return letters;
  }
  if (!is_number(first) || !is_number(last)) return {};
  std::vector<std::string> words;
  const int end = std::stoi(last);
  const int step = std::stoi(first) <= end ? 1 : -1;
  for (int i = std::stoi(first); words.size() <= kMaxListWords; i += step) {
    words.push_back(fmt::format("{}", i));
    if (i == end) return words;
  }
  return {};
}

// The words of the list or range whose `{` is at `open`, and its end in `end`; empty if it is none.
std::vector<std::string> list_at(std::string_view text, std::size_t open, std::size_t& end) {
  std::vector<std::string> words;
  int depth = 0;
  std::size_t begin = open + 1;
  for (std::size_t i = open; i < text.size();) {
    const char c = text[i];
    if (c == '{') ++depth;
    if (c == '}' && --depth == 0) {
      if (words.empty())
        words = range_of(text.substr(begin, i - begin));
      else
        words.emplace_back(text.substr(begin, i - begin));
      end = i + 1;
      return words;
    }
    if (c == ',' && depth == 1) {
      words.emplace_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
    i = end_of_unit(text, i);
  }
  return {};
}

void expand_into(const std::string& raw, int nesting, std::vector<std::string>& words) {
  for (std::size_t i = 0; i < raw.size() && nesting < kMaxNesting; i = end_of_unit(raw, i)) {
    if (raw[i] != '{') continue;
    std::size_t end = 0;
    const std::vector<std::string> parts = list_at(raw, i, end);
    if (parts.empty() || words.size() + parts.size() > kMaxListWords) continue;
    for (const std::string& part : parts)
      expand_into(raw.substr(0, i) + part + raw.substr(end), nesting + 1, words);
    return;
  }
  words.push_back(raw);
}

}  // namespace

std::vector<std::string> expand_lists(const std::string& raw) {
  std::vector<std::string> words;
  expand_into(raw, 0, words);
  return words;
}

}  // namespace trireme::convert::shell
