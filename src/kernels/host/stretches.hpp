// Walking over the stretches of a flat buffer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/adamw.hpp"
#include "kernels/preconditions.hpp"

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

/// Adds sum(x, size) of each stretch of args.x [n] that is among args.counted to args.out [1] f64.
/// `args` is a SquaredSum or a ZeroCount. Throws InternalError for tensors of other types.
template <typename Args, typename Sum>
void add_counted(const char* op, const Args& args, const Sum& sum) {
  check_vector(op, "x", args.x, args.x.dtype, args.x.size());
  check_vector(op, "out", args.out, DType::f64, 1);
  dispatch(args.x.dtype, [&](auto zero) {
    const auto* x = args.x.template as<decltype(zero)>();
    for_stretches(args.counted, args.x.size(),
                  [&](std::int64_t begin, std::int64_t end, bool counts) {
                    if (counts) *args.out.template as<double>() += sum(x + begin, end - begin);
                  });
  });
}

}  // namespace trireme::kernels::host
