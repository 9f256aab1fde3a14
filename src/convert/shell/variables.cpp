// Variables of a script, whole-number arithmetic, and substitutions of `sed`.
#include <fmt/format.h>
#include "convert/shell/script.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

namespace trireme::convert::shell {
namespace {

// The positional arguments: `$1` to `${99}`, `$@` and `$#`.
constexpr std::size_t kMaxNumbered = 99;

bool is_argument(const Values::value_type& variable) {
  const std::string& name = variable.first;
  const bool is_number =
      !name.empty() && name != "0" && name.find_first_not_of("0123456789") == std::string::npos;
  return name == "@" || name == "#" || is_number;
}

}  // namespace

Variables::Variables(const Definitions& definitions, const std::string& file,
                     const Values& environment)
    : values_(environment) {
  for (const auto& [name, value] : environment) exported_.insert(name);
  for (const auto& [name, value] : definitions) {
    values_[name] = {value};
    fixed_.insert(name);
  }
  values_["0"] = {file};
  values_["BASH_SOURCE"] = {file};
}

void Variables::set(const std::string& name, std::vector<std::string> elements) {
  if (!fixed_.contains(name)) values_[name] = std::move(elements);
}

void Variables::append(const std::string& name, const std::vector<std::string>& elements) {
  if (fixed_.contains(name)) return;
  std::vector<std::string>& array = values_[name];
  array.insert(array.end(), elements.begin(), elements.end());
}

void Variables::append(const std::string& name, const std::string& text) {
  const auto old = values_.find(name);
  const bool has_text = old != values_.end() && !old->second.empty();
  set(name, {has_text ? old->second[0] + text : text});
}

void Variables::unset(const std::string& name) {
  if (!fixed_.contains(name)) values_.erase(name);
}

Values Variables::exported(const std::vector<std::string>& more) const {
  Values values;
  for (const auto& [name, value] : values_)
    if (exported_.contains(name) || std::find(more.begin(), more.end(), name) != more.end())
      values[name] = value;
  return values;
}

Values Variables::replace_arguments(const std::vector<std::string>& words) {
  Values outer;
  std::copy_if(values_.begin(), values_.end(), std::inserter(outer, outer.end()), is_argument);
  std::erase_if(values_, is_argument);
  values_["@"] = std::vector<std::string>(words.begin() + 1, words.end());
  values_["#"] = {fmt::format("{}", words.size() - 1)};
  for (std::size_t i = 1; i < words.size() && i <= kMaxNumbered; ++i)
    values_[fmt::format("{}", i)] = {words[i]};
  return outer;
}

void Variables::restore_arguments(Values outer) {
  std::erase_if(values_, is_argument);
  values_.merge(outer);
}

namespace {

using Number = std::optional<std::int64_t>;
using ValueOf = std::function<std::optional<std::string>(std::string_view)>;

// Limit on the terms of an expression, which bounds the recursion.
constexpr int kMaxTerms = 100;

Number whole(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Number apply(char operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (operation) {
    case '+':
      return __builtin_add_overflow(a, b, &result) ? Number() : result;
    case '-':
      return __builtin_sub_overflow(a, b, &result) ? Number() : result;
    case '*':
      return __builtin_mul_overflow(a, b, &result) ? Number() : result;
    default:
      if (b == 0 || (a == std::numeric_limits<std::int64_t>::min() && b == -1)) return {};
      return operation == '/' ? a / b : a % b;
  }
}

Number power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0 || exponent > 63) return {};
  Number result = 1;
  for (; exponent > 0 && result; --exponent) result = apply('*', *result, base);
  return result;
}

// Recursive descent: sum, product, power, factor.
class Parser {
 public:
  Parser(std::string_view text, const ValueOf& value_of) : text_(text), value_of_(value_of) {}

  Number parse() {
    const Number value = sum();
    return next() == '\0' ? value : Number();
  }

 private:
  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  Number sum() {
    Number value = product();
    while (value && (next() == '+' || next() == '-')) {
      const char operation = text_[at_++];
      const Number right = product();
      value = right ? apply(operation, *value, *right) : right;
    }
    return value;
  }

  Number product() {
    Number value = raised();
    while (value && (next() == '*' || next() == '/' || next() == '%')) {
      const char operation = text_[at_++];
      const Number right = raised();
      value = right ? apply(operation, *value, *right) : right;
    }
    return value;
  }

  Number raised() {
    const Number value = factor();
    next();
    if (!value || text_.substr(at_, 2) != "**") return value;
    at_ += 2;
    const Number exponent = raised();
    return exponent ? power(*value, *exponent) : exponent;
  }

  Number factor() {
    if (++terms_ > kMaxTerms) return {};
    const char c = next();
    if (c == '-' || c == '+') {
      ++at_;
      const Number value = factor();
      return value && c == '-' ? apply('-', 0, *value) : value;
    }
    if (c == '(') {
      ++at_;
      const Number value = sum();
      if (next() != ')') return {};
      ++at_;
      return value;
    }
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word.empty()) return {};
    if (std::isdigit(static_cast<unsigned char>(word[0]))) return whole(word);
    const auto text = value_of_(word);
    return text ? whole(*text) : Number();
  }

  std::string_view text_;
  const ValueOf& value_of_;
  std::size_t at_ = 0;
  int terms_ = 0;
};

}  // namespace

std::optional<std::int64_t> evaluate(std::string_view expression, const ValueOf& value_of) {
  return Parser(expression, value_of).parse();
}

std::optional<std::string> substitute(std::string_view command, std::string_view text) {
  if (command.size() < 4 || command[0] != 's') return std::nullopt;
  const std::size_t second = command.find(command[1], 2);
  const std::size_t third = second == kNone ? kNone : command.find(command[1], second + 1);
  if (third == kNone) return std::nullopt;
  const std::string_view name = command.substr(2, second - 2);
  const std::string_view value = command.substr(second + 1, third - second - 1);
  const std::string_view options = command.substr(third + 1);
  const bool plain = !name.empty() && name.find_first_of("\\.*[]^$\n") == kNone &&
                     value.find_first_of("\\&\n") == kNone;
  if (!plain || (!options.empty() && options != "g")) return std::nullopt;
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string line(text.substr(0, end));
    text.remove_prefix(end);
    for (std::size_t at = line.find(name); at != kNone; at = line.find(name, at + value.size())) {
      line.replace(at, name.size(), value);
      if (options.empty()) break;
    }
    result += line;
  }
  return result;
}

}  // namespace trireme::convert::shell
