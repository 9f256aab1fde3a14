// Walking over the stretches of a flat buffer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/adamw.hpp"

namespace trireme::kernels::host {

/// Elements of a flat buffer that one task updates.
inline constexpr std::int64_t kFlatBlock = 16384;

/// Calls function(begin, end, inside) for the consecutive stretches of n elements.
template <typename Function>
void for_stretches(const Stretches& stretches, std::int64_t n, const Function& function) {
  std::int64_t begin = 0;
  bool inside = stretches.count == 0;
  for (std::int64_t i = 0; i <= stretches.count; ++i) {
    const std::int64_t end = i < stretches.count ? std::min(stretches.bounds[i], n) : n;
    if (begin < end) function(begin, end, inside);
    begin = std::max(begin, end);
    inside = !inside;
  }
}

}  // namespace trireme::kernels::host
