// The part of numpy's RandomState that sample orders depend on, draw for draw.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace trireme::data {

/// numpy.random.RandomState(seed): MT19937 seeded as std::mt19937 seeds it.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : generator_(seed) {}

  /// Uniform in 0..max, both included: the legacy `random_interval`, by masked rejection. Draws
  /// nothing when max is 0, 64 bits a try (high word first) when max is above 2^32 - 1.
  std::uint64_t interval(std::uint64_t max);

  /// RandomState.random(): uniform in [0, 1) with 53 bits.
  double uniform() {
    const std::uint32_t high = static_cast<std::uint32_t>(generator_()) >> 5;
    const std::uint32_t low = static_cast<std::uint32_t>(generator_()) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  /// RandomState.shuffle of a one-dimensional array.
  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::mt19937 generator_;
};

}  // namespace trireme::data
