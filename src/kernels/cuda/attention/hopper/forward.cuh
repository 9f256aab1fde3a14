// The forward pass for compute capability 9.0: wgmma fed by bulk copies. A warpgroup computes the
// scores of its next tile, and adds the values of its last, while it takes the softmax of the one
// between. Blocks stay and take items as they get free: the first copies of one run while the one
// before it is finished.
// Source: Shah et al., "FlashAttention-3" (2024), algorithm 2. Bound by GEMMs for heads of 128,
// by exponentials as much for heads of 64: an SM does 16 of them, or 4096 flops, a
// cycle.
#pragma once

#include "kernels/cuda/attention/hopper/forward_copies.cuh"
#include "kernels/cuda/attention/hopper/softmax.cuh"
#include "kernels/cuda/attention/hopper/tiles.hpp"
#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/hopper/tensor_map.hpp"
#include "kernels/cuda/hopper/tma.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Consumer `consumer` of a block: the 64 queries of each item that are its own.
template <typename T, int D, bool kDropout, bool kDocuments>
struct BoxForwardConsumer {
  using Tile = BoxForwardTile<D>;
  static constexpr int kSteps = Tile::kKeys / 16;

  BoxForwardMemory<D>& memory;
  const BoxForwardParameters& p;
  const int consumer, thread, warp, lane;
  int s = 0;                       // of the item's sample, without padding
  int half = 0;                    // of the item's queries: this consumer's
  RingPlace<Tile::kStages> place;  // of the tile whose scores were taken last
  float out[D / 2];
  std::uint32_t weights[kSteps][4];  // of that tile, rounded
  RowPairSoftmax softmax;

  __device__ BoxForwardConsumer(BoxForwardMemory<D>& memory, const BoxForwardParameters& p,
                                int consumer)
      : memory(memory),
        p(p),
        consumer(consumer),
        thread(threadIdx.x % 128),
        warp(thread / 32),
        lane(thread % 32) {}

  // One arrival a warp: this one is done with what the barrier guards.
  __device__ __forceinline__ void release(Barrier* empty) const {
    if (lane == 0) arrive(empty);
  }

  // Starts S = Q K^T for the first 2 kCount keys at `stage`.
  template <int kCount>
  __device__ __forceinline__ void start_scores(float (&scores)[kCount], int stage) const {
    const std::uint64_t queries =
        matrix_descriptor(shared_address(memory.queries.bytes) + half * 64 * kPanelRowBytes, 0);
    const std::uint64_t keys = matrix_descriptor(shared_address(memory.keys[stage].bytes), 0);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      wgmma<T, 0, 0>(scores, advanced(queries, column_step(Tile::kQueries, k)),
                     advanced(keys, column_step(Tile::kKeys, k)), k > 0);
    warpgroup_commit_batch();
  }

  // Starts out += P V for the values at `stage`.
  __device__ __forceinline__ void start_values(int stage) {
    const std::uint64_t values =
        matrix_descriptor(shared_address(memory.values[stage].bytes), Tile::kKeys * kPanelRowBytes);
    warpgroup_fence_operand(out);
    warpgroup_fence_operand(weights);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) wgmma<T, 1>(out, weights[k], advanced(values, row_step(k)));
    warpgroup_commit_batch();
  }

  // Hides the keys behind the last that this thread's rows attend to.
  template <int kCount>
  __device__ __forceinline__ void mask(float (&scores)[kCount], int query_begin,
                                       int key_begin) const {
    if (!needs_mask(query_begin, key_begin, 2 * kCount, s, p.sizes.causal)) return;
    const int first = key_begin + accumulator_column(thread, 0);
    int left[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      left[h] =
          keys_end(s, query_begin + accumulator_row(thread, 2 * h) + 1, p.sizes.causal) - first;
#pragma unroll
    for (int e = 0; e < kCount; ++e)
      if (accumulator_column(0, e) >= left[e / 2 % 2]) scores[e] = -INFINITY;
  }

  // Hides what is before the first keys of this thread's rows, `firsts`; `last` is that of the
  // warpgroup's last row.
  template <int kCount>
  __device__ __forceinline__ void mask_documents(float (&scores)[kCount], const int (&firsts)[2],
                                                 int last, int key_begin) const {
    if constexpr (kDocuments) {
      if (last <= key_begin) return;
      const int first = key_begin + accumulator_column(thread, 0);
      const int hidden[2] = {firsts[0] - first, firsts[1] - first};
#pragma unroll
      for (int e = 0; e < kCount; ++e)
        if (accumulator_column(0, e) < hidden[e / 2 % 2]) scores[e] = -INFINITY;
    }
  }

  // Decisions of this warp's rows and the first 2 kCount keys from `key_begin` on.
  template <int kCount>
  __device__ __forceinline__ void draw(KeptKeys<kCount / 4>& kept, const HeadDropout& dropout,
                                       int query_begin, int key_begin) const {
    if constexpr (kDropout) kept.draw(dropout, query_begin + 16 * warp, key_begin, lane);
  }

  // Rounds probabilities as operand A, those that are not kept to zero.
  template <int kCount>
  __device__ __forceinline__ void round(std::uint32_t (&a)[kCount / 8][4],
                                        const float (&scores)[kCount],
                                        const KeptKeys<kCount / 4>& kept) const {
    pack_rows<T>(a, scores);
    if constexpr (kDropout) {
#pragma unroll
      for (int k = 0; k < kCount / 8; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[k][i] &= kept.mask(2 * k + i / 2, i % 2);
    }
  }

  // The first keys that this thread's rows attend to, and the warpgroup's last row.
  struct Firsts {
    int of_rows[2], last;
  };

  // The weights of the tile of keys that is worked on first, `tile`, of which no row attends to
  // more than the first kCount keys.
  template <int kCount>
  __device__ __forceinline__ void begin(int query_begin, int tile, int first_tile,
                                        const Firsts& firsts, const HeadDropout& dropout) {
    float scores[kCount / 2], correction[2];
    KeptKeys<kCount / 8> kept;
    wait(&memory.keys_full[place.stage], place.parity);
    start_scores(scores, place.stage);
    draw<kCount / 2>(kept, dropout, query_begin, tile * Tile::kKeys);
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    release(&memory.keys_empty[place.stage]);
    if (tile == first_tile) release(&memory.queries_empty);
    mask(scores, query_begin, tile * Tile::kKeys);
    mask_documents(scores, firsts.of_rows, firsts.last, tile * Tile::kKeys);
    softmax.update(scores, p.scale2, correction);
    wait(&memory.values_full[place.stage], place.parity);
    std::uint32_t rounded[kCount / 16][4];
    round(rounded, scores, kept);
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights[k][i] = k < kCount / 16 ? rounded[k % (kCount / 16)][i] : 0;
  }

  // The queries of head `task` from query_begin on, the item's half `half`, and tiles first_tile ..
  // tiles - 1 of keys.
  __device__ __forceinline__ void attend(int task, int query_begin, int first_tile, int tiles) {
    const FirstKeys first_keys =
        first_keys_of(kDocuments ? p.document_start : nullptr, p.sizes, task);
    const Firsts firsts{{first_keys(query_begin + accumulator_row(thread, 0)),
                         first_keys(query_begin + accumulator_row(thread, 2))},
                        first_keys(query_begin + 63)};
    const HeadDropout dropout(p.dropout, task / p.sizes.heads, task % p.sizes.heads, p.sizes.s);
    softmax = RowPairSoftmax();
#pragma unroll
    for (float& c : out) c = 0.0f;

    // ---- the last tile of keys, the only one that the causal mask cuts -------------------------
    int tile = tiles - 1;
    if (keys_of_last_tile<D>(half, p.sizes.causal) <= Tile::kKeys / 2)
      begin<Tile::kKeys / 2>(query_begin, tile, first_tile, firsts, dropout);
    else
      begin<Tile::kKeys>(query_begin, tile, first_tile, firsts, dropout);

    // ---- the others ---------------------------------------------------------------------------
    float scores[Tile::kKeys / 2], correction[2];
    KeptKeys<Tile::kKeys / 8> kept;
    while (tile > first_tile) {
      --tile;
      const int last = place.stage;
      place.advance();
      wait(&memory.keys_full[place.stage], place.parity);
      start_scores(scores, place.stage);
      start_values(last);
      draw<Tile::kKeys / 2>(kept, dropout, query_begin, tile * Tile::kKeys);
      warpgroup_wait<1>();
      warpgroup_fence_operand(scores);
      release(&memory.keys_empty[place.stage]);
      if (tile == first_tile) release(&memory.queries_empty);
      mask_documents(scores, firsts.of_rows, firsts.last, tile * Tile::kKeys);
      softmax.update(scores, p.scale2, correction);
      // Here rather than in the next round: the assembler would move the softmax behind the
      // GEMMs if no branch kept them apart.
      warpgroup_fence_operand(scores);
      wait(&memory.values_full[place.stage], place.parity);
      warpgroup_wait<0>();
      warpgroup_fence_operand(out);
      warpgroup_fence_operand(weights);
      release(&memory.values_empty[last]);
      scale_rows(out, correction);
      round(weights, scores, kept);
    }
    start_values(place.stage);
    warpgroup_wait<0>();
    warpgroup_fence_operand(out);
    release(&memory.values_empty[place.stage]);
    place.advance();
  }

  // Writes the results of attend.
  __device__ __forceinline__ void finish(const CUtensorMap& map, int task, int query_begin) {
    float factors[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = softmax.total(h);
      const int query = query_begin + accumulator_row(thread, 2 * h);
      if (lane % 4 == 0 && query < s)
        p.lse[std::int64_t{task} * p.sizes.s + query] = softmax.largest[h] * p.scale + logf(total);
      factors[h] = query < s ? (kDropout ? p.dropout.kept : 1.0f) / total : 0.0f;
    }
    scale_rows(out, factors);
    std::uint32_t rounded[D / 16][4];
    pack_rows<T>(rounded, out);
    if constexpr (Tile::kRaisesAmax)
      if (p.amax) raise_amax(rounded);
    // The rows of the item before have left by now, or nearly.
    if (thread == 0) wait_stores_read();
    named_barrier_sync(kResultBarrier + consumer, 128);
    unsigned char* rows = memory.result.bytes + consumer * 64 * kPanelRowBytes;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      store_matrices(rows + tile_unit(Tile::kQueries, 16 * warp + lane % 16, 2 * k + lane / 16),
                     rounded[k]);
    publish_shared();
    named_barrier_sync(kResultBarrier + consumer, 128);
    if (thread == 0 && query_begin < s) {
#pragma unroll
      for (int panel = 0; panel < Tile::kPanels; ++panel)
        tma_store(map, rows + panel * Tile::kQueries * kPanelRowBytes, panel * kPanelColumns, task,
                  query_begin);
      commit_stores();
    }
  }

  // Raises amax to the largest magnitude of this warp's results.
  __device__ __forceinline__ void raise_amax(const std::uint32_t (&rounded)[D / 16][4]) const {
    LargestMagnitude<T> largest(nullptr);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) largest.take(rounded[k][i]);
    const unsigned bits = largest.of_warp();
    if (lane == 0) atomicMax(reinterpret_cast<unsigned*>(p.amax), bits);
  }

  static constexpr int kResultBarrier = 1;  // and those behind it, one for each consumer
};

#endif

/// One block per SM.
template <typename T, int D, bool kDropout, bool kDocuments>
__global__ void __launch_bounds__(BoxForwardTile<D>::kThreads, 1)
    attend_boxes(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap out,
                 const __grid_constant__ BoxForwardParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = BoxForwardTile<D>;
  auto& memory = *reinterpret_cast<BoxForwardMemory<D>*>(aligned_shared_memory());
  if (threadIdx.x == 0) {
    prefetch_map(qkv);
    prefetch_map(out);
    make_barrier(&memory.item_full, 1);
    make_barrier(&memory.queries_full, 1);
    make_barrier(&memory.queries_empty, 4 * Tile::kConsumers);
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      make_barrier(&memory.keys_full[stage], 1);
      make_barrier(&memory.keys_empty[stage], 4 * Tile::kConsumers);
      make_barrier(&memory.values_full[stage], 1);
      make_barrier(&memory.values_empty[stage], 4 * Tile::kConsumers);
    }
    publish_barriers();
  }
  __syncthreads();

  // The same in all lanes of a warp, which the compiler would not know otherwise.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<24>();
    if (threadIdx.x == 0) copy_items<D, kDocuments>(memory, qkv, p);
  } else {
    setmaxnreg_inc<240>();
    BoxForwardConsumer<T, D, kDropout, kDocuments> consumer(memory, p, warpgroup - 1);
    for (unsigned round = 0;; ++round) {
      wait(&memory.item_full, round & 1);
      const int index = read_for_warp(&memory.item);
      const int first_tile = kDocuments ? read_for_warp(&memory.first_tile) : 0;
      if (index >= p.schedule.items()) break;
      wait(&memory.queries_full, round & 1);
      const auto [task, block] = p.schedule.item(index);
      const int query_end = (block + 1) * Tile::kQueries;
      consumer.s = p.sizes.length(task);
      // The first half has less to do where the mask cuts: the consumers take turns in having it.
      consumer.half = (consumer.consumer + round) % 2;
      const int query_begin = block * Tile::kQueries + 64 * consumer.half;
      consumer.attend(task, query_begin, first_tile,
                      tiles_of(keys_end(consumer.s, query_end, p.sizes.causal), Tile::kKeys));
      consumer.finish(out, task, query_begin);
    }
    if (consumer.thread == 0) wait_stores_read();
  }
#endif
}

/// attention_forward on compute capability 9.0, for 16-bit types and heads padded
/// to D, for which fits_boxes.
template <int D>
void launch_box_forward(const AttentionForward& args, const Context& context) {
  dispatch_half(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Tile = BoxForwardTile<D>;
    const AttentionSizes sizes = attention_sizes(args, true);
    const double scale = 1.0 / std::sqrt(static_cast<double>(sizes.d));
    const BoxForwardParameters p{
        .lse = args.lse.as<float>(),
        .taken = reinterpret_cast<unsigned*>(context.workspace),
        .sizes = sizes,
        .scale2 = static_cast<float>(scale) * kLog2E,
        .scale = static_cast<float>(scale),
        .schedule = box_forward_schedule<D>(sizes.b * sizes.heads, sizes.s),
        .dropout = attention_dropout(args.dropout, args.first_head),
        .document_start = args.document_start,
        .amax = args.out.amax};
    const std::int64_t d = sizes.d, parts = sizes.all_heads();
    const std::int64_t tasks = std::int64_t{sizes.b} * sizes.heads;
    const CUtensorMap qkv = make_tensor_map<4>(
        args.qkv.dtype, args.qkv.data,
        {{{.size = d, .stride = 1, .box = kPanelColumns},
          {.size = parts, .stride = d, .box = 1},
          {.size = sizes.b, .stride = parts * d, .box = 1},
          {.size = sizes.s, .stride = sizes.b * parts * d, .box = Tile::kKeys}}});
    const CUtensorMap out =
        make_tensor_map<3>(args.out.dtype, args.out.data,
                           {{{.size = d, .stride = 1, .box = kPanelColumns},
                             {.size = tasks, .stride = d, .box = 1},
                             {.size = sizes.s, .stride = tasks * d, .box = 64}}});
    TRIREME_CUDA(cudaMemsetAsync(p.taken, 0, sizeof(unsigned), context.stream));
    const int blocks = std::min(context.sms, p.schedule.items());
    dispatch_flag(p.dropout.mask.threshold > 0, [&](auto dropout) {
      dispatch_flag(args.document_start != nullptr, [&](auto documents) {
        launch(attend_boxes<T, D, decltype(dropout)::value, decltype(documents)::value>, blocks,
               Tile::kThreads, sizeof(BoxForwardMemory<D>), context, qkv, out, p);
      });
    });
    if (!Tile::kRaisesAmax) raise_amax(args.out, context);
  });
}

}  // namespace trireme::kernels::cuda
