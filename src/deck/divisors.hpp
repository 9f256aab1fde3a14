// Divisors in words, for messages that propose values.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::deck {

/// "1, 2, 4 or 8": the divisors of `number` that are multiples of `factor`, which divides it, and
/// not below `least`; the six nearest to `near` where there are more.
std::string divisor_list(std::int64_t number, std::int64_t near, std::int64_t factor = 1,
                         std::int64_t least = 1);

}  // namespace trireme::deck
