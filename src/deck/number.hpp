// Decimal numbers as people write them: 12, 1_000, 1.5e9, -2e-3.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::deck {

/// Whether `text` is a decimal number. Throws BadValue for one that YAML reads otherwise (010) or
/// whose exponent no number has.
bool is_decimal(std::string_view text);

/// `text` as a whole number; exact, also from `1.5e9`. Throws BadValue when it is none or does not
/// fit into 64 bits.
std::int64_t parse_whole(std::string_view text);

/// `text` as a floating-point number, rounded once. Throws BadValue when it is none or out of
/// range.
double parse_real(std::string_view text);

}  // namespace trireme::deck
