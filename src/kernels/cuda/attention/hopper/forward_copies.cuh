// The forward pass for compute capability 9.0, one thread of a block: takes the block's items, and
// copies their queries, keys and values into shared memory, where the consumers read them.
#pragma once

#include "kernels/cuda/attention/hopper/tiles.hpp"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/hopper/tensor_map.hpp"
#include "kernels/cuda/hopper/tma.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"

namespace trireme::kernels::cuda {

/// A block's shared memory. `full` barriers end a phase when a copy, or the item, has arrived,
/// `empty` ones when every consumer warp is done with it.
template <int D>
struct BoxForwardMemory {
  using Tile = BoxForwardTile<D>;
  struct alignas(kPanelAlignment) Rows {
    unsigned char bytes[Tile::kTileBytes];
  };

  Rows queries, result, keys[Tile::kStages], values[Tile::kStages];
  int item;        ///< index in the schedule, beyond its end when there is no more
  int first_tile;  ///< of its keys, with documents
  Barrier item_full, queries_full;
  Barrier queries_empty;  ///< the item is not needed any more, either
  Barrier keys_full[Tile::kStages], keys_empty[Tile::kStages];
  Barrier values_full[Tile::kStages], values_empty[Tile::kStages];
};

/// AttentionForward as the kernel sees it, without the tensor maps of qkv and out.
struct BoxForwardParameters {
  float* lse;
  unsigned* taken;  ///< items that were taken by blocks after their first
  AttentionSizes sizes;
  float scale2;  ///< scale of the scores in base 2
  float scale;
  BoxForwardSchedule schedule;
  AttentionDropout dropout;
  const std::int32_t* document_start;  ///< [b, s], or null
  float* amax;                         ///< of out, or null
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Whether all queries of an item are padding.
template <int D>
__device__ __forceinline__ bool is_padding(const BoxForwardParameters& p, int index) {
  const auto [task, block] = p.schedule.item(index);
  return block * BoxForwardTile<D>::kQueries >= p.sizes.length(task);
}

/// Copies Q, K and V of this block's items, by one thread.
template <int D, bool kDocuments>
__device__ __forceinline__ void copy_items(BoxForwardMemory<D>& memory, const CUtensorMap& qkv,
                                           const BoxForwardParameters& p) {
  using Tile = BoxForwardTile<D>;
  const auto load = [&](auto& to, Barrier& full, int part, int task, int row) {
    arrive_expect_tx(&full, Tile::kTileBytes);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
      tma_load(to.bytes + panel * Tile::kKeys * kPanelRowBytes, qkv, &full, panel * kPanelColumns,
               p.sizes.head_of(task % p.sizes.heads, part), task / p.sizes.heads, row);
  };
  const auto next = [&] { return static_cast<int>(gridDim.x + atomicAdd(p.taken, 1u)); };
  RingPlace<Tile::kStages> place;
  int index = static_cast<int>(blockIdx.x);
  for (unsigned round = 0;; ++round) {
    while (index < p.schedule.items() && is_padding<D>(p, index)) index = next();
    wait(&memory.queries_empty, ~round & 1);
    memory.item = index;
    if (index >= p.schedule.items()) {
      arrive(&memory.item_full);
      break;
    }
    const auto [task, block] = p.schedule.item(index);
    const int s = p.sizes.length(task);
    const int query_begin = block * Tile::kQueries, query_end = query_begin + Tile::kQueries;
    const int first_tile = first_keys_of(kDocuments ? p.document_start : nullptr, p.sizes, task)
                               .first_key_tile(query_begin, Tile::kKeys);
    if (kDocuments) memory.first_tile = first_tile;
    arrive(&memory.item_full);
    index = next();
    load(memory.queries, memory.queries_full, 0, task, query_begin);
    for (int tile = tiles_of(keys_end(s, query_end, p.sizes.causal), Tile::kKeys) - 1;
         tile >= first_tile; --tile) {
      const int stage = place.stage;
      wait(&memory.keys_empty[stage], place.parity ^ 1);
      load(memory.keys[stage], memory.keys_full[stage], 1, task, tile * Tile::kKeys);
      wait(&memory.values_empty[stage], place.parity ^ 1);
      load(memory.values[stage], memory.values_full[stage], 2, task, tile * Tile::kKeys);
      place.advance();
    }
  }
}

#endif

}  // namespace trireme::kernels::cuda
