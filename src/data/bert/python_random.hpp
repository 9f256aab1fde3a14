// The part of Python's random.Random that the sampling of Megatron-LM's first release depends on,
// draw for draw.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace trireme::data {

/// random.Random(seed) for seed >= 0: MT19937 seeded by init_by_array.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed) {
    InitByArray words{seed};
    generator_.seed(words);
  }

  /// random(): uniform in [0, 1) with 53 bits.
  double uniform() {
    const std::uint32_t high = draw() >> 5, low = draw() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  /// _randbelow(n): uniform in 0 .. n - 1, 1 <= n < 2^32. Draws also when n is 1.
  std::uint64_t below(std::uint64_t n) {
    const int bits = std::bit_width(n);
    std::uint64_t value;
    do {
      value = draw() >> (32 - bits);
    } while (value >= n);
    return value;
  }

  /// randint(low, high): both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }

  /// shuffle() of a list.
  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[below(i + 1)]);
  }

 private:
  /// The seed sequence that makes std::mt19937::seed() give init_by_array's state. Source:
  /// Matsumoto and Nishimura, mt19937ar.c (2002).
  struct InitByArray {
    using result_type = std::uint32_t;
    std::uint64_t seed;

    template <typename Iterator>
    void generate(Iterator begin, Iterator end);
  };

  std::uint32_t draw() { return static_cast<std::uint32_t>(generator_()); }

  std::mt19937 generator_;
};

template <typename Iterator>
void PythonRandom::InitByArray::generate(Iterator begin, Iterator end) {
  const auto size = static_cast<std::uint32_t>(end - begin);
  const auto at = [begin](std::uint32_t i) { return static_cast<std::uint32_t>(begin[i]); };
  const std::uint32_t key[2] = {static_cast<std::uint32_t>(seed),
                                static_cast<std::uint32_t>(seed >> 32)};
  const std::uint32_t keys = key[1] ? 2 : 1;
  begin[0] = 19650218u;
  for (std::uint32_t i = 1; i < size; ++i)
    begin[i] = 1812433253u * (at(i - 1) ^ at(i - 1) >> 30) + i;
  std::uint32_t i = 1;
  const auto next = [&](std::uint32_t value) {
    begin[i] = value;
    if (++i < size) return;
    begin[0] = at(size - 1);
    i = 1;
  };
  for (std::uint32_t k = 0; k < size; ++k)
    next((at(i) ^ (at(i - 1) ^ at(i - 1) >> 30) * 1664525u) + key[k % keys] + k % keys);
  for (std::uint32_t k = 1; k < size; ++k)
    next((at(i) ^ (at(i - 1) ^ at(i - 1) >> 30) * 1566083941u) - i);
  begin[0] = 0x80000000u;
}

}  // namespace trireme::data
