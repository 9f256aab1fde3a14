// The backward pass on Hopper: the four warps that bring and take away what the others multiply.
#pragma once

#include "kernels/cuda/attention/hopper/backward_memory.cuh"

namespace trireme::kernels::cuda {

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
