// The documents of a sample as the tiles of the attention kernels meet them: a query attends to no
// key before its document's first. Documents lie one behind the other, so that the tiles that meet
// are a range: of keys, for a block of queries, and of queries, for a block of keys. Pure
// arithmetic, checked on the CPU.
#pragma once

#include <cstdint>

#include "core/philox.hpp"

namespace trireme::kernels::cuda {

/// The first key that each query of a sample attends to: where its document begins, or 0 where
/// `starts` is null; a null that the compiler knows costs nothing. Queries behind the sequence
/// count as its last one.
struct FirstKeys {
  const std::int32_t* starts;  ///< [s], not decreasing, starts[query] <= query
  int s;

  TRIREME_HOST_DEVICE constexpr int operator()(int query) const {
    return starts ? starts[query < s ? query : s - 1] : 0;
  }

  /// Whether no query from `query_begin` on attends to a key before `key_end`.
  TRIREME_HOST_DEVICE constexpr bool all_behind(int query_begin, int key_end) const {
    return starts && (*this)(query_begin) >= key_end;
  }
  /// Whether some query before `query_end` does not attend to all keys from `key_begin` on.
  TRIREME_HOST_DEVICE constexpr bool cut(int query_end, int key_begin) const {
    return starts && (*this)(query_end - 1) > key_begin;
  }
  /// Whether `key` is before all that `query` attends to.
  TRIREME_HOST_DEVICE constexpr bool hide(int query, int key) const {
    return starts && key < (*this)(query);
  }

  /// The first tile of `keys` keys that a query from `query_begin` on attends to.
  TRIREME_HOST_DEVICE constexpr int first_key_tile(int query_begin, int keys) const {
    return (*this)(query_begin) / keys;
  }
  /// Whether tile `tile` of `queries` queries attends to a key before `key_end`. Where one does
  /// not, none behind it does.
  TRIREME_HOST_DEVICE constexpr bool tile_reaches(int tile, int queries, int key_end) const {
    return !all_behind(tile * queries, key_end);
  }
};

}  // namespace trireme::kernels::cuda
