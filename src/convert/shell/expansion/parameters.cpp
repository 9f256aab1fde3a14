// `${ ... }`: elements, slices, prefixes and suffixes, defaults.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "convert/shell/script.hpp"
#include "core/error.hpp"

namespace trireme::convert::shell {
namespace {

// Limit on the texts that are searched for a pattern: the search takes cubic time.
constexpr std::size_t kMaxSearchedBytes = 1000;

bool matches(const std::string& pattern, std::string_view text) {
  return ::fnmatch(pattern.c_str(), std::string(text).c_str(), 0) == 0;
}

// `text` without its longest or shortest prefix, or suffix, that `pattern` matches.
std::string trimmed(const std::string& text, const std::string& pattern, bool at_end,
                    bool longest) {
  const std::size_t size = text.size();
  for (std::size_t i = 0; i <= size; ++i) {
    const std::size_t length = longest ? size - i : i;
    const std::string_view part = std::string_view(text).substr(at_end ? size - length : 0, length);
    if (matches(pattern, part)) return at_end ? text.substr(0, size - length) : text.substr(length);
  }
  return text;
}

// Where `pattern` may match in `${NAME/pattern/to}`.
enum class Where { first, all, front, back };

// `text` with the longest matches of `pattern` replaced.
std::string replaced(const std::string& text, const std::string& pattern, const std::string& to,
                     Where where) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    std::size_t length = rest.size();
    const std::size_t shortest = where == Where::back ? rest.size() : 1;
    while (length >= shortest && !matches(pattern, rest.substr(0, length))) --length;
    if (length < shortest) {
      if (where == Where::front) return text;
      result += text[at++];
      continue;
    }
    result += to;
    at += length;
    if (where != Where::all) return result + text.substr(at);
  }
  return result;
}

// `text` in upper or lower case: all of it, or its first letter.
std::string in_case(std::string text, bool upper, bool all) {
  for (std::size_t i = 0; i < (all ? text.size() : std::min<std::size_t>(1, text.size())); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    text[i] = static_cast<char>(upper ? std::toupper(c) : std::tolower(c));
  }
  return text;
}

}  // namespace

// `text` after the operation of `${NAME#pattern}`, `##`, `%`, `%%`, `/a/b`, `//a/b`, `/#a/b`,
// `/%a/b`, `^`, `^^`, `,` or `,,`; empty for other operations and unknown patterns.
std::optional<std::string> Expander::edited(const std::string& text, std::string_view operation) {
  const char kind = operation[0];
  const bool twice = operation.size() > 1 && operation[1] == kind;
  std::string_view rest = operation.substr(twice ? 2 : 1);
  if (kind == '^' || kind == ',')
    return rest.empty() ? std::optional(in_case(text, kind == '^', twice)) : std::nullopt;
  if (text.size() > kMaxSearchedBytes) return std::nullopt;
  Where where = twice ? Where::all : Where::first;
  std::size_t slash = kNone;
  if (kind == '/') {
    if (!twice && rest.starts_with('#')) where = Where::front;
    if (!twice && rest.starts_with('%')) where = Where::back;
    if (where == Where::front || where == Where::back) rest.remove_prefix(1);
    slash = rest.find('/');
    while (slash != kNone && slash > 0 && rest[slash - 1] == '\\')
      slash = rest.find('/', slash + 1);
  }
  const std::string pattern = inner().pattern(rest.substr(0, slash));
  const std::string to = slash == kNone ? "" : inner().text(rest.substr(slash + 1));
  if (has_unknown(pattern) || (kind == '/' && pattern.empty())) return std::nullopt;
  if (kind == '/') return replaced(text, pattern, to, where);
  return trimmed(text, pattern, kind == '%', twice);
}

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
  // A mark of the whole array may stand for any number of elements.
  const std::string whole_mark = fmt::format("{}${}", kUnknownBegin, name);
  for (const std::string& value : *values)
    if (value.starts_with(whole_mark)) return std::nullopt;
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

// `${NAME:begin}` and `${NAME:begin:count}` of a text; empty if the numbers are unknown or out of
// its range.
std::optional<std::string> Expander::substring(const std::string& text, std::string_view range) {
  const std::size_t colon = range.find(':');
  const auto size = static_cast<std::int64_t>(text.size());
  const auto begin = value_of(range.substr(0, colon));
  const auto count = colon == kNone ? std::optional(size) : value_of(range.substr(colon + 1));
  if (!begin || !count) return std::nullopt;
  const std::int64_t from = *begin < 0 ? size + *begin : *begin;
  if (from < 0 || from > size) return std::string();
  const std::int64_t to =
      *count < 0 ? size + *count : std::min(size, from + std::min(*count, size));
  if (to < from) return std::nullopt;
  return text.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
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

// `${!NAME}`, the value of the variable that NAME names, and the indices `${!NAME[@]}`; empty if
// unknown.
std::optional<std::vector<std::string>> Expander::indirect(std::string_view name) const {
  const bool is_array = name.ends_with("[@]") || name.ends_with("[*]");
  const auto values = find(is_array ? name.substr(0, name.size() - 3) : name);
  if (!values) return std::nullopt;
  for (const std::string& value : *values)
    if (has_unknown(value)) return std::nullopt;
  if (!is_array) {
    const auto target = values->empty() ? std::nullopt : find(values->front());
    return target && !target->empty() ? std::optional(std::vector{target->front()}) : std::nullopt;
  }
  // The keys of an associative array have no order.
  const std::string prefix = fmt::format("{}[", name.substr(0, name.size() - 3));
  for (auto at = variables_.lower_bound(prefix);
       at != variables_.end() && at->first.starts_with(prefix); ++at)
    if (!std::isdigit(static_cast<unsigned char>(at->first[prefix.size()]))) return std::nullopt;
  std::vector<std::string> indices;
  for (std::size_t i = 0; i < values->size(); ++i) indices.push_back(fmt::format("{}", i));
  return indices;
}

// `inside` is the text between `${` and `}`.
void Expander::expand_braces(std::string_view inside, bool quoted) {
  if (const auto length = length_of(inside)) return put_value(fmt::format("{}", *length), quoted);
  if (inside.starts_with('!') && inside.size() > 1) {
    const auto words = indirect(inside.substr(1));
    return words ? put_array(*words, quoted)
                 : put_value(unknown(fmt::format("${{{}}}", inside)), true);
  }
  // `${10}` is the tenth argument, `$10` the first and a 0.
  const std::size_t digits = std::min(inside.find_first_not_of("0123456789"), inside.size());
  const std::size_t length = std::max(name_length(inside), digits);
  const std::string_view name = inside.substr(0, length);
  std::string_view rest = inside.substr(length);
  const auto values = find(name);
  const bool all = name == "@" || name == "*";
  const auto mark = [&] { put_value(unknown(fmt::format("${{{}}}", inside)), true); };
  if (rest.empty()) {
    if (all) return put_array(values.value_or(std::vector<std::string>()), quoted, name == "*");
    return values && !values->empty() ? put_value((*values)[0], quoted) : values ? void() : mark();
  }
  if (rest == "[@]" || rest == "[*]")
    return values ? put_array(*values, quoted, rest == "[*]") : mark();
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
  if (rest[0] == ':' && rest.size() > 1 && std::string_view("-=+?").find(rest[1]) == kNone) {
    const bool known = values && !values->empty() && !has_unknown(values->front());
    const auto part = known ? substring(values->front(), rest.substr(1)) : std::nullopt;
    return part ? put_value(*part, quoted) : mark();
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
  // Outside of quotes the default is split into words: those of its own that are quoted stay whole.
  Expander nested = inner();
  nested.splits_blanks_ = true;
  nested.plain_quotes_ = quoted || quotes_ == Quotes::here;
  if (kind == '=' || quoted || quotes_ != Quotes::split) {
    const std::string text = nested.text(rest.substr(1));
    if (kind == '=') assign_(std::string(name), text);
    return put_value(text, quoted);
  }
  const std::vector<std::string> words = nested.words(rest.substr(1));
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) end_word();
    has_word_ = true;
    put_value(words[i], true);
  }
}

}  // namespace trireme::convert::shell
