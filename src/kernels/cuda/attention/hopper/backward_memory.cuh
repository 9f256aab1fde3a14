// The backward pass on Hopper: shared memory of a block, the order that its warps keep, and the
// four warps that bring and take away what the others multiply.
#pragma once

#include <cuda.h>

#include "kernels/cuda/attention/hopper/tiles.hpp"
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

// ---- the four warps that copy

/// Draws blocks of keys and loads them, and for each its tiles of queries: one warp.
template <typename T, int D, bool kDocuments>
__device__ __forceinline__ void load_blocks(const AttentionBackwardParameters<T>& p,
                                            const BoxBackwardMaps& maps,
                                            const BoxBackwardMemory<T, D, kDocuments>& memory) {
  using Tile = BoxBackwardTile<D>;
  const AttentionSizes& sizes = p.sizes;
  const int lane = threadIdx.x % 32;
  const int works = sizes.b * sizes.heads * tiles_of(sizes.s, Tile::kKeys);
  // `rows` rows of a head, from row `begin` on.
  const auto load = [&](unsigned char* to, const CUtensorMap& map, Barrier* barrier, int rows,
                        int head, int sample, int begin) {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
#pragma unroll
      for (int row = 0; row < rows; row += 64)
        tma_load(to + panel * rows * kPanelRowBytes + row * kPanelRowBytes, map, barrier,
                 panel * kPanelColumns, head, sample, begin + row);
  };

  RingPlace<Tile::kStages> tile_place;
  for (RingPlace<Tile::kStages> place;; place.advance()) {
    int ticket = 0;
    do {
      if (lane == 0) ticket = static_cast<int>(atomicAdd(p.ticket, 1u));
      ticket = __shfl_sync(~0u, ticket, 0);
    } while (ticket < works && BoxBackwardWork<D>(ticket, sizes).is_padding());
    wait(memory.block_empty(place.stage), place.parity ^ 1);
    if (ticket >= works) {
      if (lane == 0) {
        *memory.ticket(place.stage) = -1;
        arrive(memory.ticket_full(place.stage));
      }
      return;
    }
    BoxBackwardWork<D> work(ticket, sizes);
    const FirstKeys first_keys =
        first_keys_of(kDocuments ? p.document_start : nullptr, sizes, work.task);
    if constexpr (kDocuments) {
      work.end_tile = query_tiles_end<Tile::kQueries, 32>(
          first_keys, work.first_tile, work.end_tile, work.key_begin + Tile::kKeys, lane,
          [](bool reaches) { return __popc(__ballot_sync(~0u, reaches)); });
      if (lane == 0) *memory.end_tile(place.stage) = work.end_tile;
    }
    const int sample = work.task / sizes.heads, head = work.task % sizes.heads;
    if (lane == 0) {
      Barrier* const full = memory.block_full(place.stage);
      *memory.ticket(place.stage) = ticket;
      arrive(memory.ticket_full(place.stage));
      arrive_expect_tx(full, 2 * Tile::kKeyBytes);
      load(memory.keys(place.stage), maps.qkv, full, Tile::kKeys, sizes.head_of(head, 1), sample,
           work.key_begin);
      load(memory.values(place.stage), maps.qkv, full, Tile::kKeys, sizes.head_of(head, 2), sample,
           work.key_begin);
    }
    const RowStatistics* const statistics = p.statistics + std::int64_t{work.task} * sizes.s;
    for (int tile = work.first_tile; tile < work.end_tile; ++tile, tile_place.advance()) {
      const int begin = tile * Tile::kQueries, stage = tile_place.stage;
      wait(memory.tile_empty(stage), tile_place.parity ^ 1);
      if (lane == 0) {
        arrive_expect_tx(memory.queries_full(stage), Tile::kQueryBytes);
        load(memory.queries(stage), maps.qkv, memory.queries_full(stage), Tile::kQueries, head,
             sample, begin);
        arrive_expect_tx(memory.douts_full(stage), Tile::kQueryBytes);
        load(memory.douts(stage), maps.dout, memory.douts_full(stage), Tile::kQueries, head, sample,
             begin);
      }
      __syncwarp();
      // Zeros behind the sequence: with zero rows of Q and dO they leave dK and dV as they are.
#pragma unroll 2
      for (int row = lane; row < Tile::kQueries; row += 32) {
        const RowStatistics of_row =
            begin + row < sizes.s ? statistics[begin + row] : RowStatistics{0.0f, 0.0f};
        memory.lse2(stage)[row] = of_row.lse2;
        memory.delta(stage)[row] = of_row.delta;
        if (kDocuments) memory.first_keys(stage)[row] = first_keys(begin + row);
      }
      arrive(memory.statistics_full(stage));
    }
  }
}

/// Writes dK and dV of each block: one thread.
template <typename T, int D, bool kDocuments>
__device__ __forceinline__ void store_blocks(const AttentionBackwardParameters<T>& p,
                                             const BoxBackwardMaps& maps,
                                             const BoxBackwardMemory<T, D, kDocuments>& memory) {
  using Tile = BoxBackwardTile<D>;
  const AttentionSizes& sizes = p.sizes;
  RingPlace<Tile::kStages> place;
  for_each_block<false>(memory, sizes, [&](const BoxBackwardWork<D>& work, int stage) {
    wait(memory.block_done(stage), place.parity);
    const int sample = work.task / sizes.heads, head = work.task % sizes.heads;
    for (const int part : {1, 2}) {
      const unsigned char* from = part == 1 ? memory.keys(stage) : memory.values(stage);
      for (int panel = 0; panel < Tile::kPanels; ++panel)
        for (int row = 0; row < Tile::kKeys && work.key_begin + row < sizes.s; row += 64)
          tma_store(maps.key_gradients, from + (panel * Tile::kKeys + row) * kPanelRowBytes,
                    panel * kPanelColumns,
                    sample * p.key_gradients.all_heads + p.key_gradients.first_head +
                        (part - 1) * sizes.heads + head,
                    work.key_begin + row);
    }
    commit_stores();
    wait_stores_read();
    arrive(memory.block_empty(stage));
    place.advance();
  });
}

/// Waits until the blocks before each block in the order of dQ have added theirs: one thread.
template <typename T, int D, bool kDocuments>
__device__ __forceinline__ void await_turns(const AttentionBackwardParameters<T>& p,
                                            const BoxBackwardMemory<T, D, kDocuments>& memory) {
  const AttentionSizes& sizes = p.sizes;
  unsigned parity = 1;
  for_each_block<false>(memory, sizes, [&](const BoxBackwardWork<D>& work, int stage) {
    const unsigned* turns = p.turns + std::int64_t{work.task} * work.tiles;
    for (int tile = work.first_tile; tile < work.end_tile; ++tile, parity ^= 1) {
      const int turn = work.turn(tile, sizes);
      if (turn > 0) wait_for_turn(turns + tile, turn);
      wait(memory.turn_come(), parity);  // the turn before has begun
      arrive(memory.turn_come());
    }
    arrive(memory.block_empty(stage));
  });
}

/// Tells the next blocks in the order of dQ that this one has added its part: one thread, which
/// does in peace what takes as long as the writes under way.
template <typename T, int D, bool kDocuments>
__device__ __forceinline__ void pass_turns(const AttentionBackwardParameters<T>& p,
                                           const BoxBackwardMemory<T, D, kDocuments>& memory) {
  const AttentionSizes& sizes = p.sizes;
  unsigned parity = 0;
  arrive(memory.turn_come());
  for_each_block<false>(memory, sizes, [&](const BoxBackwardWork<D>& work, int stage) {
    unsigned* turns = p.turns + std::int64_t{work.task} * work.tiles;
    for (int tile = work.first_tile; tile < work.end_tile; ++tile, parity ^= 1) {
      wait(memory.turn_taken(), parity);
      arrive(memory.turn_come());  // for the next: this phase has been seen
      if (work.block > 0) pass_turn(turns + tile, 1 + work.turn(tile, sizes));
    }
    arrive(memory.block_empty(stage));
  });
}

}  // namespace trireme::kernels::cuda
