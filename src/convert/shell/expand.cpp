#include "convert/shell/script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "core/error.hpp"

namespace trireme::convert::shell {
namespace {

// More than the kernel's limit on a command line.
constexpr std::size_t kMaxWordBytes = std::size_t{4} << 20;

bool is_separator(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The length of the variable name at the start of `text`: a name, or one special character like
// `@`.
std::size_t name_length(std::string_view text) {
  if (text.empty()) return 0;
  if (!is_name(text[0])) return std::string_view("@*#?$!-").find(text[0]) == kNone ? 0 : 1;
  if (std::isdigit(static_cast<unsigned char>(text[0]))) return 1;
  std::size_t length = 0;
  while (length < text.size() && is_name(text[length])) ++length;
  return length;
}

}  // namespace

std::vector<std::string> Expander::words(std::string_view raw) {
  expand(raw, Quotes::split);
  return std::move(words_);
}

std::string Expander::text(std::string_view raw) {
  expand(raw, Quotes::join);
  return words_.empty() ? "" : std::move(words_[0]);
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

void Expander::put_value(std::string_view value, bool quoted) {
  bool marked = false;
  for (const char c : value) {
    if (c == kUnknownBegin || c == kUnknownEnd) marked = c == kUnknownBegin;
    if (!quoted && !marked && quotes_ == Quotes::split && is_separator(c))
      end_word();
    else
      put(c);
  }
}

void Expander::put_array(const std::vector<std::string>& values, bool quoted) {
  // "$@" without arguments expands to no word.
  if (values.empty() && word_.empty()) has_word_ = false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0 && quotes_ == Quotes::split) end_word();
    if (i > 0 && quotes_ != Quotes::split) put(' ');
    if (quoted) has_word_ = true;
    put_value(values[i], quoted);
  }
}

std::optional<std::vector<std::string>> Expander::find(std::string_view name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end()) return std::nullopt;
  return found->second;
}

Expander Expander::inner() const {
  Expander expander(variables_, output_of_);
  expander.nesting_ = nesting_ + 1;
  if (expander.nesting_ > kMaxNesting)
    throw DataError("a word of the script is nested more than {} deep", kMaxNesting);
  return expander;
}

std::string Expander::arithmetic(std::string_view expression) {
  // `$NAME` and `${NAME}` are expanded here, bare names by evaluate().
  const std::string text = inner().text(expression);
  const auto value_of = [&](std::string_view name) -> std::optional<std::string> {
    const auto values = find(name);
    if (!values) return std::nullopt;
    return values->empty() ? "0" : (*values)[0];
  };
  const auto value = evaluate(text, value_of);
  return value ? fmt::format("{}", *value) : unknown(fmt::format("$(({}))", expression));
}

std::optional<bool> Expander::holds(std::string_view expression) {
  constexpr std::string_view kComparisons[] = {"<=", ">=", "==", "!=", "<", ">"};
  const auto number = [&](std::string_view part) -> std::optional<std::int64_t> {
    const std::string text = arithmetic(part);
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
  };
  for (const std::string_view sign : kComparisons) {
    const std::size_t at = expression.find(sign);
    if (at == kNone) continue;
    const auto a = number(expression.substr(0, at));
    const auto b = number(expression.substr(at + sign.size()));
    if (!a || !b) return std::nullopt;
    if (sign == "==") return *a == *b;
    if (sign == "!=") return *a != *b;
    if (sign.starts_with('<')) return *a < *b || (sign.size() == 2 && *a == *b);
    return *a > *b || (sign.size() == 2 && *a == *b);
  }
  const auto value = number(expression);
  return value ? std::optional(*value != 0) : std::nullopt;
}

namespace {

/// The prefix (or, with `at_end`, suffix) of `text` that `pattern`, a literal text with a `*`
/// before or after it at most, matches: its length, the longest one with `longest`. Empty for other
/// patterns; 0 if it matches nothing.
std::optional<std::size_t> matched(std::string_view text, std::string_view pattern, bool at_end,
                                   bool longest) {
  const bool front = pattern.starts_with('*');
  if (front) pattern.remove_prefix(1);
  const bool back = pattern.ends_with('*');
  if (back) pattern.remove_suffix(1);
  if ((front && back) || pattern.empty() || pattern.find_first_of("*?[\\$`\"'") != kNone)
    return std::nullopt;
  if (!front && !back) {
    const bool matches = at_end ? text.ends_with(pattern) : text.starts_with(pattern);
    return matches ? pattern.size() : 0;
  }
  // The `*` must be at the end to which the match extends: "*/" from the front, ".*" from the back.
  if (at_end ? !back : !front) return std::nullopt;
  const std::size_t at = at_end == longest ? text.find(pattern) : text.rfind(pattern);
  if (at == kNone) return 0;
  return at_end ? text.size() - at : at + pattern.size();
}

/// `text` after the operation of `${NAME#pattern}`, `##`, `%`, `%%`, `/a/b`, `//a/b`, `^^` or `,,`;
/// empty for other operations.
std::optional<std::string> edited(std::string text, std::string_view operation) {
  const char kind = operation[0];
  if (operation == "^^" || operation == ",,") {
    for (char& c : text)
      c = static_cast<char>(kind == '^' ? std::toupper(static_cast<unsigned char>(c))
                                        : std::tolower(static_cast<unsigned char>(c)));
    return text;
  }
  const bool twice = operation.size() > 1 && operation[1] == kind;
  const std::string_view rest = operation.substr(twice ? 2 : 1);
  if (kind == '#' || kind == '%') {
    const auto length = matched(text, rest, kind == '%', twice);
    if (!length) return std::nullopt;
    return kind == '#' ? text.substr(*length) : text.substr(0, text.size() - *length);
  }
  if (kind != '/' || rest.find_first_of("*?[\\$`\"'") != kNone) return std::nullopt;
  const std::size_t slash = rest.find('/');
  const std::string_view from = rest.substr(0, slash);
  const std::string_view to = slash == kNone ? "" : rest.substr(slash + 1);
  if (from.empty()) return std::nullopt;
  for (std::size_t at = text.find(from); at != kNone && text.size() < kMaxWordBytes;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
    if (!twice) break;
  }
  return text;
}

}  // namespace

// The element of an array, or of an associative one, that `name[index]` is; empty if unknown.
std::optional<std::string> Expander::element(std::string_view name, std::string_view index) {
  const auto keyed = find(fmt::format("{}[{}]", name, inner().text(index)));
  if (keyed && !keyed->empty()) return keyed->front();
  const auto values = find(name);
  const std::string text = arithmetic(index);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (!values || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const auto size = static_cast<std::int64_t>(values->size());
  if (number < 0) number += size;
  return number >= 0 && number < size ? std::optional((*values)[static_cast<std::size_t>(number)])
                                      : std::nullopt;
}

// The elements of `${NAME[@]:begin}` or `${NAME[@]:begin:count}`, where `first` is the number of
// the first one; empty if the numbers are unknown or negative.
std::optional<std::vector<std::string>> Expander::slice(const std::vector<std::string>& values,
                                                        std::string_view range, int first) {
  const auto number = [&](std::string_view text) -> std::optional<std::size_t> {
    const std::string value = arithmetic(text);
    std::size_t result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    return error == std::errc() && end == value.data() + value.size() ? std::optional(result)
                                                                      : std::nullopt;
  };
  const std::size_t colon = range.find(':');
  const auto begin = number(range.substr(0, colon));
  const auto count =
      colon == kNone ? std::optional(values.size()) : number(range.substr(colon + 1));
  if (!begin || !count || *begin < static_cast<std::size_t>(first)) return std::nullopt;
  const std::size_t from = std::min(*begin - static_cast<std::size_t>(first), values.size());
  const std::size_t to = from + std::min(*count, values.size() - from);
  return std::vector<std::string>(values.begin() + static_cast<std::ptrdiff_t>(from),
                                  values.begin() + static_cast<std::ptrdiff_t>(to));
}

// `${#NAME}` and `${#NAME[@]}`; empty for other texts and unknown values.
std::optional<std::size_t> Expander::length_of(std::string_view inside) const {
  if (!inside.starts_with('#') || inside.size() < 2) return std::nullopt;
  std::string_view name = inside.substr(1);
  const bool array = name.ends_with("[@]") || name.ends_with("[*]");
  if (array) name.remove_suffix(3);
  const auto values = find(name);
  if (!values || name_length(name) != name.size()) return std::nullopt;
  for (const std::string& value : *values)
    if (has_unknown(value)) return std::nullopt;
  if (array || name == "@" || name == "*") return values->size();
  return values->empty() ? 0 : values->front().size();
}

// `inside` is the text between `${` and `}`.
void Expander::expand_braces(std::string_view inside, bool quoted) {
  if (const auto length = length_of(inside)) return put_value(fmt::format("{}", *length), quoted);
  // `${10}` is the tenth argument, `$10` the first and a 0.
  const std::size_t digits = std::min(inside.find_first_not_of("0123456789"), inside.size());
  const std::size_t length = std::max(name_length(inside), digits);
  const std::string_view name = inside.substr(0, length);
  std::string_view rest = inside.substr(length);
  const auto values = find(name);
  const bool all = name == "@" || name == "*";
  const auto mark = [&] { put_value(unknown(fmt::format("${{{}}}", inside)), true); };
  if (rest.empty()) {
    if (all) return put_array(values.value_or(std::vector<std::string>()), quoted);
    return values && !values->empty() ? put_value((*values)[0], quoted) : values ? void() : mark();
  }
  if (rest == "[@]" || rest == "[*]") return values ? put_array(*values, quoted) : mark();
  if (rest.starts_with("[@]:") || rest.starts_with("[*]:")) {
    const auto part = values ? slice(*values, rest.substr(4), /*first=*/0) : std::nullopt;
    return part ? put_array(*part, quoted) : mark();
  }
  if (rest[0] == '[') {
    const std::size_t close = rest.find(']');
    const auto value =
        close + 1 == rest.size() ? element(name, rest.substr(1, close - 1)) : std::nullopt;
    return value ? put_value(*value, quoted) : mark();
  }
  // A slice of unknown arguments is empty.
  if (all && !values && rest[0] == ':') return put_array({}, quoted);
  if (all && rest[0] == ':')
    if (const auto part = slice(*values, rest.substr(1), /*first=*/1))
      return put_array(*part, quoted);
  if (std::string_view("#%/^,").find(rest[0]) != kNone) {
    const bool known = values && !values->empty() && !has_unknown(values->front());
    const auto text = known ? edited(values->front(), rest) : std::nullopt;
    return text ? put_value(*text, quoted) : mark();
  }
  // A default: NAME:-word, NAME-word, NAME:=word, NAME=word, NAME:+word, NAME+word. NAME:?word is
  // an error message, not a default.
  const bool or_empty = rest[0] == ':';
  if (or_empty) rest.remove_prefix(1);
  const char kind = rest.empty() ? '\0' : rest[0];
  if (kind == '\0' || std::string_view("-=+?").find(kind) == kNone) return mark();
  const bool is_set = values && !(or_empty && (values->empty() || (*values)[0].empty()));
  if (kind == '?' && !is_set) return mark();
  if (is_set != (kind == '+')) {
    if (is_set) put_value(values->empty() ? "" : (*values)[0], quoted);
    return;
  }
  put_value(inner().text(rest.substr(1)), quoted);
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
    const std::string source(raw.substr(at + 2, end - at - 3));
    put_value(output_of_(source).value_or(unknown("$(" + source + ")")), quoted);
    return end;
  }
  if (rest.starts_with("{")) {
    const std::size_t end = std::min(raw.find('}', at), raw.size());
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
    put_array(values.value_or(std::vector<std::string>()), quoted);
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
  for (std::size_t i = 0; i < raw.size();) {
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
      if (!escapes) put(c);
      if (next != '\n') put(next);
      i += 2;
    } else if (c == '"' && quotes != Quotes::here) {
      in_quotes = !in_quotes;
      if (in_quotes) has_word_ = true;
      ++i;
    } else if (c == '\'' && !literal) {
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
      put(c);
      ++i;
    }
  }
  end_word();
}

}  // namespace trireme::convert::shell
