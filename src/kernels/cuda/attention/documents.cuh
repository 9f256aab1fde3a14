// How the attention kernels find out which documents their tiles meet.
#pragma once

#include "kernels/cuda/attention/documents.hpp"
#include "kernels/cuda/attention/rows.cuh"

namespace trireme::kernels::cuda {

/// The first keys of the queries of head `task` % heads of sample `task` / heads, of document_start
/// [b, s], or of null, which kernels without documents give, known to the compiler.
__device__ __forceinline__ FirstKeys first_keys_of(const std::int32_t* document_start,
                                                   const AttentionSizes& sizes, int task) {
  if (!document_start) return {nullptr, sizes.s};
  return {document_start + std::int64_t{task / sizes.heads} * sizes.s, sizes.s};
}

/// Where the tiles of kQueries queries end that attend to a key before `key_end`, of those from
/// `first_tile` to `tiles`. By kLanes threads, of which this is `lane`; `count` tells how many of
/// them say yes.
template <int kQueries, int kLanes, typename Count>
__device__ __forceinline__ int query_tiles_end(const FirstKeys& first_keys, int first_tile,
                                               int tiles, int key_end, int lane,
                                               const Count& count) {
  int end = first_tile;
  for (int begin = first_tile; begin < tiles && begin == end; begin += kLanes) {
    const int tile = begin + lane;
    end += count(tile < tiles && first_keys.tile_reaches(tile, kQueries, key_end));
  }
  return end;
}

}  // namespace trireme::kernels::cuda
