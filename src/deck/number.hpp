// Decimal numbers as people write them: 12, 1_000, 1.5e9, -2e-3; counts as 10k or 1.5B, shares as
// 5%.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme::deck {

/// Whether `text` is a decimal number. Throws BadValue for one that YAML reads otherwise (010) or
/// whose exponent no number has.
bool is_decimal(std::string_view text);

/// Whether a whole number may end in k (10^3), M (10^6), B or G (10^9), or T (10^12).
enum class Suffix { none, allowed };

/// `text` as a whole number; exact, also from `1.5e9`, and with `suffix` from `1.5B`. Throws
/// BadValue when it is none or does not fit into 64 bits.
std::int64_t parse_whole(std::string_view text, Suffix suffix = Suffix::none);

/// `text` as a floating-point number, rounded once; `5%` is 0.05. Throws BadValue when it is none
/// or out of range.
double parse_real(std::string_view text);

/// The number at the head of `text`, without what follows it: "1.5e3" of "1.5e3 samples".
std::string_view leading_number(std::string_view text);

/// `text`, hours, minutes and seconds such as `1:30:00`, in seconds; nothing when it has no colon.
/// Throws BadValue when it has one and is no such time.
std::optional<std::int64_t> parse_clock(std::string_view text);

}  // namespace trireme::deck
