// The backward pass on Hopper: shared memory of a block, and the order that its warps keep.
#pragma once

#include <cuda.h>

#include "kernels/cuda/attention/hopper/backward_tiles.hpp"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/hopper/barriers.cuh"
#include "kernels/cuda/hopper/tma.cuh"

namespace trireme::kernels::cuda {

/// The tensors as bulk copies see them, in boxes of 64 rows of a head.
struct BoxBackwardMaps {
  CUtensorMap qkv;            ///< [s, b, heads + 2 * kv_heads, d]
  CUtensorMap dout;           ///< [s, b, heads, d]
  CUtensorMap key_gradients;  ///< [s, b * all_heads, d] of KeyGradients
};

/// The shared memory of a block of threads. Keys and queries have each a ring of kStages buffers.
/// With kDocuments attention stays within documents.
template <typename T, int D, bool kDocuments>
struct BoxBackwardMemory {
  using Tile = BoxBackwardTile<D>;
  static constexpr int kStages = Tile::kStages;

  unsigned char* base = aligned_shared_memory();

  __device__ unsigned char* keys(int stage) const {
    return at(Tile::kKeysAt, Tile::kKeyBytes, stage);
  }
  __device__ unsigned char* values(int stage) const {
    return at(Tile::kValuesAt, Tile::kKeyBytes, stage);
  }
  __device__ unsigned char* queries(int stage) const {
    return at(Tile::kQueriesAt, Tile::kQueryBytes, stage);
  }
  __device__ unsigned char* douts(int stage) const {
    return at(Tile::kDoutsAt, Tile::kQueryBytes, stage);
  }
  /// dS^T, [kKeys, kQueries].
  __device__ unsigned char* dscores(int stage) const {
    return at(Tile::kScoresAt, Tile::kScoreBytes, stage);
  }
  /// Of the rows of a tile: log-sum-exp in base 2, and `delta` of RowStatistics.
  __device__ float* lse2(int stage) const {
    return reinterpret_cast<float*>(at(Tile::kStatisticsAt, 8 * Tile::kQueries, stage));
  }
  __device__ float* delta(int stage) const { return lse2(stage) + Tile::kQueries; }
  /// With documents, the first key that each query of a tile attends to.
  __device__ int* first_keys(int stage) const {
    return reinterpret_cast<int*>(at(Tile::kFirstKeysAt, 4 * Tile::kQueries, stage));
  }

  /// The block of keys is there.
  __device__ Barrier* block_full(int stage) const { return barrier(0 + stage); }
  /// No warp needs the block of keys, or its number, any more.
  __device__ Barrier* block_empty(int stage) const { return barrier(2 + stage); }
  /// dK and dV lie where the block's keys and values lay.
  __device__ Barrier* block_done(int stage) const { return barrier(4 + stage); }
  /// Queries of a tile are there; dO is there; none of a tile is needed any more.
  __device__ Barrier* queries_full(int stage) const { return barrier(6 + stage); }
  __device__ Barrier* douts_full(int stage) const { return barrier(8 + stage); }
  __device__ Barrier* tile_empty(int stage) const { return barrier(10 + stage); }
  /// It is this block's turn to add to dQ of the tile; it has added.
  __device__ Barrier* turn_come() const { return barrier(12); }
  __device__ Barrier* turn_taken() const { return barrier(13); }
  /// What the warp that loads writes of its own: of a tile, row statistics and first keys; of a
  /// block, its number and where its tiles end.
  __device__ Barrier* statistics_full(int stage) const { return barrier(14 + stage); }
  __device__ Barrier* ticket_full(int stage) const { return barrier(16 + stage); }
  /// The number of the block of keys, -1 after the last.
  __device__ int* ticket(int stage) const {
    return reinterpret_cast<int*>(base + Tile::kTicketsAt) + stage;
  }
  /// With documents, where the tiles of queries end that attend to the block of keys.
  __device__ int* end_tile(int stage) const { return ticket(kStages) + stage; }

  /// One thread makes the barriers. Those of copies count bytes as well; what threads write and
  /// read has others, at which each of these threads arrives: then racecheck, too, sees the order.
  __device__ void make_barriers() const {
    constexpr int kWarps = Tile::kConsumers / 32;
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(block_full(stage), 1);
      make_barrier(block_empty(stage), 3);  // the three warps that do not load
      make_barrier(block_done(stage), kWarps);
      make_barrier(queries_full(stage), 1);
      make_barrier(douts_full(stage), 1);
      make_barrier(tile_empty(stage), Tile::kConsumers);  // each has read statistics
      make_barrier(statistics_full(stage), 32);
      make_barrier(ticket_full(stage), 1);
    }
    make_barrier(turn_come(), 2);  // the warp that waits for it, the one that passes it on
    make_barrier(turn_taken(), kWarps);
    publish_barriers();
  }

 private:
  static_assert(kStages == 2, "the barriers are counted so");
  __device__ unsigned char* at(int offset, int bytes, int stage) const {
    return base + offset + stage * bytes;
  }
  __device__ Barrier* barrier(int i) const {
    return reinterpret_cast<Barrier*>(base + Tile::kBarriersAt) + i;
  }
};

/// One block of keys, and the tiles of queries that attend to it: first_tile .. end_tile - 1 of
/// `tiles`. Without documents, all from first_tile on that are not padding.
template <int D>
struct BoxBackwardWork {
  using Tile = BoxBackwardTile<D>;
  int task, block, key_begin, first_tile, end_tile, tiles;
  int s;  ///< of the sample, without padding

  __device__ BoxBackwardWork(int ticket, const AttentionSizes& sizes)
      : tiles(tiles_of(sizes.s, Tile::kQueries)) {
    const KeyBlock drawn = key_block(ticket, sizes.b * sizes.heads, tiles_of(sizes.s, Tile::kKeys));
    task = drawn.task;
    s = sizes.length(task);
    end_tile = tiles_of(s, Tile::kQueries);
    block = drawn.block;
    key_begin = block * Tile::kKeys;
    first_tile = first_query_tile(key_begin, Tile::kQueries, sizes.causal);
  }

  /// Whether all keys are padding.
  __device__ bool is_padding() const { return key_begin >= s; }

  __device__ int turn(int tile, const AttentionSizes& sizes) const {
    return turn_of(tile, block, Tile::kQueries, Tile::kKeys, s, sizes.causal);
  }
};

/// Calls function(work, stage) for each block of keys that is drawn, until the last: by whole
/// warps, once the block is there, if `kMultiplies`, otherwise by one thread.
template <bool kMultiplies, typename T, int D, bool kDocuments, typename Function>
__device__ __forceinline__ void for_each_block(const BoxBackwardMemory<T, D, kDocuments>& memory,
                                               const AttentionSizes& sizes, Function&& function) {
  const auto read = [](const int* from) { return kMultiplies ? read_for_warp(from) : *from; };
  for (RingPlace<BoxBackwardTile<D>::kStages> place;; place.advance()) {
    wait(memory.ticket_full(place.stage), place.parity);
    const int ticket = read(memory.ticket(place.stage));
    if (ticket < 0) return;
    BoxBackwardWork<D> work(ticket, sizes);
    if (kDocuments) work.end_tile = read(memory.end_tile(place.stage));
    if (kMultiplies) wait(memory.block_full(place.stage), place.parity);
    function(work, place.stage);
  }
}

}  // namespace trireme::kernels::cuda
