#include "deck/number.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "deck/value.hpp"

namespace trireme::deck {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A decimal number taken apart: sign, digits without point, and the power of ten of the last
/// digit.
struct Decimal {
  bool negative = false;
  std::string digits;
  int exponent = 0;
};

// Takes digits from the head of `text`, with single underscores between digits.
std::string take_digits(std::string_view& text) {
  std::string digits;
  while (!text.empty()) {
    const bool separator =
        text[0] == '_' && !digits.empty() && text.size() > 1 && is_digit(text[1]);
    if (!is_digit(text[0]) && !separator) break;
    if (!separator) digits += text[0];
    text.remove_prefix(1);
  }
  return digits;
}

std::optional<Decimal> read_decimal(std::string_view text) {
  Decimal number;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    number.negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const std::string whole = take_digits(text);
  std::string fraction;
  if (!text.empty() && text[0] == '.') {
    text.remove_prefix(1);
    fraction = take_digits(text);
  }
  if (whole.empty() && fraction.empty()) return std::nullopt;
  if (!text.empty() && (text[0] == 'e' || text[0] == 'E')) {
    text.remove_prefix(1);
    if (!text.empty() && text[0] == '+') text.remove_prefix(1);
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number.exponent);
    // Beyond +-9999 no number fits anyway; the bound keeps the sums below from overflowing.
    if (error == std::errc::invalid_argument) return std::nullopt;
    if (error != std::errc() || std::abs(number.exponent) > 9999) {
      throw BadValue("the exponent is out of range");
    }
    text.remove_prefix(end - text.data());
  }
  if (!text.empty()) return std::nullopt;
  if (whole.size() > 1 && whole[0] == '0') {
    throw BadValue("a number does not start with 0 (YAML would read it as octal)");
  }
  number.digits = whole + fraction;
  number.exponent -= static_cast<int>(fraction.size());
  return number;
}

}  // namespace

bool is_decimal(std::string_view text) { return read_decimal(text).has_value(); }

std::int64_t parse_whole(std::string_view text) {
  const auto bad = [] { return BadValue("expected a whole number"); };
  const std::optional<Decimal> number = read_decimal(text);
  if (!number) throw bad();
  std::string digits = number->digits;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return 0;
  for (int exponent = number->exponent; exponent < 0; ++exponent) {
    if (digits.empty() || digits.back() != '0') throw bad();
    digits.pop_back();
  }
  constexpr std::size_t kMostDigits = std::numeric_limits<std::int64_t>::digits10 + 1;
  const std::size_t zeros = std::max(number->exponent, 0);
  std::int64_t value = 0;
  if (digits.size() + zeros <= kMostDigits) {
    digits.append(zeros, '0');
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc()) return number->negative ? -value : value;
  }
  throw BadValue("too large for a 64-bit number");
}

double parse_real(std::string_view text) {
  const std::optional<Decimal> number = read_decimal(text);
  if (!number) throw BadValue("expected a number");
  const std::string plain = fmt::format("{}e{}", number->digits, number->exponent);
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc()) throw BadValue("out of the range of floating-point numbers");
  return number->negative ? -value : value;
}

}  // namespace trireme::deck
