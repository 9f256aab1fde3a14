// Long buffers travel in chunks: MPI counts are ints, and reductions need memory.
#pragma once

#include <cstddef>

namespace trireme::comm {

/// Maximum elements of one MPI call, whose counts are ints: a quarter of INT_MAX, because
/// collective algorithms multiply counts by small numbers.
inline constexpr std::size_t kMaxCount = std::size_t{1} << 29;

/// Maximum elements of one reduction. Open MPI's algorithms take temporary memory of half to twice
/// the length of the call, here up to 8 MiB, and chunks of 4 MiB stay in the caches: 2 to 8 ranks
/// on one host reduced 64 MiB in half the time of one call. Chunks of 1 MiB would make Open MPI 4.1
/// choose other algorithms, which sum in another order.
inline constexpr std::size_t kMaxReduction = std::size_t{1} << 20;

/// Calls `function(offset, count)` for consecutive chunks that cover [0, total): as few as `limit`
/// elements each allow, of equal counts up to one element, so that no chunk is much shorter than
/// the others and reduced by another algorithm.
template <typename Function>
void for_each_chunk(std::size_t total, std::size_t limit, Function&& function) {
  const std::size_t chunks = (total + limit - 1) / limit;
  for (std::size_t i = 0, begin = 0; i < chunks; ++i) {
    const std::size_t end = begin + (total - begin + (chunks - i - 1)) / (chunks - i);
    function(begin, static_cast<int>(end - begin));
    begin = end;
  }
}

}  // namespace trireme::comm
