#include "data/numpy_random.hpp"

#include <bit>
#include <limits>

namespace trireme::data {

std::uint64_t NumpyRandom::interval(std::uint64_t max) {
  if (max == 0) return 0;
  const std::uint64_t mask = std::numeric_limits<std::uint64_t>::max() >> std::countl_zero(max);
  std::uint64_t value;
  do {
    value = generator_();
    if (max > std::numeric_limits<std::uint32_t>::max()) value = value << 32 | generator_();
    value &= mask;
  } while (value > max);
  return value;
}

}  // namespace trireme::data
