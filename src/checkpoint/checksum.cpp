// The checksums of tensors, declared in checkpoint/file.hpp.
#include <array>
#include <bit>
#include <cstdint>

#include "checkpoint/file.hpp"

namespace trireme::checkpoint {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014): one to one, so that any change of `bits` changes the term.
constexpr std::uint64_t mix(std::uint64_t index, std::uint64_t bits) {
  std::uint64_t z = bits + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// The sum of squares of 0 .. n - 1, modulo 2^64; n below 2^42.
std::uint64_t sum_of_squares_below(std::int64_t n) {
  const auto wide = static_cast<unsigned __int128>(n);
  return n == 0 ? 0 : static_cast<std::uint64_t>((wide - 1) * wide * (2 * wide - 1) / 6);
}

/// Calls `function(begin, end)` with the ranges of global indices of each slab, in memory order.
template <typename Function>
void for_each_range(const Shape& shape, const grid::Hyperslabs& slabs, Function&& function) {
  const std::int64_t width = grid::whole_tensor(shape).columns;
  for (const grid::Hyperslab& slab : slabs) {
    if (slab.columns == width) {
      function(slab.row * width, (slab.row + slab.rows) * width);
      continue;
    }
    for (std::int64_t row = slab.row; row < slab.row + slab.rows; ++row) {
      const std::int64_t begin = row * width + slab.column;
      function(begin, begin + slab.columns);
    }
  }
}

// ---- version 2: a multilinear hash (Lemire, Kaser, "Strongly universal string hashing is fast",
// The Computer Journal 2014). 64-bit weights are applied to words of 32 bits, so that the change of
// one word always changes the sum.

constexpr std::int64_t kBlock = 2048;  ///< weights: 16 KiB, half of a first-level cache

/// The weights of a block's words, odd, as halves: AVX2 multiplies 32 by 32 bits.
struct Weights {
  alignas(64) std::array<std::uint32_t, kBlock> low{}, high{};
  explicit constexpr Weights(std::uint64_t seed) {
    for (std::int64_t i = 0; i < kBlock; ++i) {
      const std::uint64_t weight = mix(static_cast<std::uint64_t>(i), seed) | 1;
      low[i] = static_cast<std::uint32_t>(weight);
      high[i] = static_cast<std::uint32_t>(weight >> 32);
    }
  }
};
const Weights kWeights(0x243F6A8885A308D3u);

/// The sum of `count` words with the weights from `position` on.
std::uint64_t weighted_sum(const std::uint32_t* words, std::int64_t position, std::int64_t count) {
  const std::uint32_t* low = kWeights.low.data() + position;
  const std::uint32_t* high = kWeights.high.data() + position;
  std::uint64_t low_sum = 0, high_sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    low_sum += static_cast<std::uint64_t>(words[i]) * low[i];
    high_sum += static_cast<std::uint64_t>(words[i]) * high[i];
  }
  return low_sum + (high_sum << 32);
}

/// The checksum of the words [begin, end) of a tensor.
std::uint64_t multilinear(std::int64_t begin, std::int64_t end, const std::uint32_t* words) {
  std::uint64_t sum = 0;
  while (begin < end) {
    const std::int64_t position = begin % kBlock;
    const std::int64_t count = std::min(end - begin, kBlock - position);
    const std::uint64_t of_block = mix(static_cast<std::uint64_t>(begin / kBlock), 0) | 1;
    sum += of_block * weighted_sum(words, position, count);
    words += count;
    begin += count;
  }
  return sum;
}

/// Version 1: the sum of a mix of each element's index and bits.
template <typename Real>
std::uint64_t sum_of_mixes(std::int64_t begin, std::int64_t end, const Real* elements) {
  using Bits = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;
  std::uint64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i)
    sum += mix(static_cast<std::uint64_t>(i), std::bit_cast<Bits>(*elements++));
  return sum;
}

}  // namespace

std::uint64_t checksum(std::int64_t version, const Shape& shape, DType dtype,
                       const grid::Hyperslabs& slabs, const void* data) {
  return dispatch(dtype, [&](auto zero) {
    using Real = decltype(zero);
    constexpr std::int64_t kWords = sizeof(Real) / sizeof(std::uint32_t);
    const Real* next = static_cast<const Real*>(data);
    std::uint64_t sum = 0;
    for_each_range(shape, slabs, [&](std::int64_t begin, std::int64_t end) {
      sum += version == 1 ? sum_of_mixes(begin, end, next)
                          : multilinear(begin * kWords, end * kWords,
                                        reinterpret_cast<const std::uint32_t*>(next));
      next += end - begin;
    });
    return sum;
  });
}

std::uint64_t index_moment(const Shape& shape, const grid::Hyperslabs& slabs) {
  std::uint64_t sum = 0;
  for_each_range(shape, slabs, [&](std::int64_t begin, std::int64_t end) {
    sum += sum_of_squares_below(end) - sum_of_squares_below(begin);
  });
  return sum;
}

}  // namespace trireme::checkpoint
