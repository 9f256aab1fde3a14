// Division by a number that is fixed for a launch.
#pragma once

#include <cstdint>

#include "core/philox.hpp"

namespace trireme::kernels::cuda {

/// Quotients of unsigned numbers below 2^31 by one divisor from 1 to 2^31, in a multiplication, an
/// addition and a shift instead of the twenty instructions of a division. Source: Granlund,
/// Montgomery, "Division by invariant integers using multiplication" (PLDI 1994), figure 4.1.
class Divisor {
 public:
  explicit Divisor(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    multiplier_ = static_cast<std::uint32_t>(
        ((((std::uint64_t{1} << shift_) - divisor) << 32) / divisor) + 1);
  }

  /// numerator / divisor; numerator below 2^31, so that the sum does not overflow.
  TRIREME_HOST_DEVICE std::uint32_t quotient(std::uint32_t numerator) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{numerator} * multiplier_) >> 32);
    return (high + numerator) >> shift_;
  }

  TRIREME_HOST_DEVICE std::uint32_t divisor() const { return divisor_; }

 private:
  std::uint32_t divisor_;
  std::uint32_t multiplier_ = 0;
  std::uint32_t shift_ = 0;
};

}  // namespace trireme::kernels::cuda
