#include "deck/divisors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "deck/schema.hpp"

namespace trireme::deck {

std::string divisor_list(std::int64_t number, std::int64_t near, std::int64_t factor,
                         std::int64_t least) {
  constexpr std::size_t kMost = 6;
  const std::int64_t quotient = number / factor;
  std::vector<std::int64_t> divisors;
  for (std::int64_t low = 1; low * low <= quotient; ++low) {
    if (quotient % low != 0) continue;
    divisors.push_back(factor * low);
    if (low * low != quotient) divisors.push_back(factor * (quotient / low));
  }
  const auto distance = [near](std::int64_t divisor) {
    return std::abs(std::log(static_cast<double>(divisor) / static_cast<double>(near)));
  };
  std::erase_if(divisors, [least](std::int64_t divisor) { return divisor < least; });
  std::sort(divisors.begin(), divisors.end());
  std::stable_sort(divisors.begin(), divisors.end(),
                   [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
  divisors.resize(std::min(divisors.size(), kMost));
  std::sort(divisors.begin(), divisors.end());
  std::vector<std::string> words;
  for (const std::int64_t divisor : divisors) words.push_back(fmt::format("{}", divisor));
  return alternatives(words);
}

}  // namespace trireme::deck
