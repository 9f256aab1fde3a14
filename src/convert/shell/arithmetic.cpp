#include "convert/shell/arithmetic.hpp"

#include <cctype>
#include <charconv>
#include <limits>

namespace trireme::convert::shell {
namespace {

using Number = std::optional<std::int64_t>;
using ValueOf = std::function<std::optional<std::string>(std::string_view)>;

// More terms than any script has would only serve to exhaust the stack.
constexpr int kMostTerms = 100;

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
    if (++terms_ > kMostTerms) return {};
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

}  // namespace trireme::convert::shell
