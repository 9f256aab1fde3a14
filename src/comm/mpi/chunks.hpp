// MPI counts are ints: longer buffers travel in pieces.
#pragma once

#include <algorithm>
#include <cstddef>

namespace trireme::comm {

/// The most elements one MPI call is given. A quarter of what an int can count, because collective
/// algorithms multiply counts by small numbers.
inline constexpr std::size_t kMaxCount = std::size_t{1} << 29;

/// Calls `function(offset, count)` for consecutive pieces of at most `limit` that cover [0, total).
template <typename Function>
void for_each_chunk(std::size_t total, std::size_t limit, Function&& function) {
  for (std::size_t offset = 0; offset < total; offset += limit)
    function(offset, static_cast<int>(std::min(limit, total - offset)));
}

}  // namespace trireme::comm
