#include "checkpoint/file.hpp"

#include <bit>
#include <type_traits>

namespace trireme::checkpoint {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014): one to one, so that any change of `bits` changes the term.
std::uint64_t mix(std::uint64_t index, std::uint64_t bits) {
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

/// Calls `function(begin, end)` with the global indices of each row of each slab.
template <typename Function>
void for_each_row(const Shape& shape, const grid::Hyperslabs& slabs, Function&& function) {
  const std::int64_t width = grid::whole_tensor(shape).columns;
  for (const grid::Hyperslab& slab : slabs) {
    for (std::int64_t row = slab.row; row < slab.row + slab.rows; ++row) {
      const std::int64_t begin = row * width + slab.column;
      function(begin, begin + slab.columns);
    }
  }
}

}  // namespace

std::uint64_t checksum(const Shape& shape, DType dtype, const grid::Hyperslabs& slabs,
                       const void* data) {
  return dispatch(dtype, [&](auto zero) {
    using Real = decltype(zero);
    using Bits = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;
    const Real* next = static_cast<const Real*>(data);
    std::uint64_t sum = 0;
    for_each_row(shape, slabs, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        sum += mix(static_cast<std::uint64_t>(i), std::bit_cast<Bits>(*next++));
    });
    return sum;
  });
}

std::uint64_t index_moment(const Shape& shape, const grid::Hyperslabs& slabs) {
  std::uint64_t sum = 0;
  for_each_row(shape, slabs, [&](std::int64_t begin, std::int64_t end) {
    sum += sum_of_squares_below(end) - sum_of_squares_below(begin);
  });
  return sum;
}

}  // namespace trireme::checkpoint
