// The backward pass on Hopper: wgmma, for compute capability 9.0. As in attention/backward.cuh
// scores have keys as rows, so that P^T and dS^T go from accumulators to operands without leaving
// registers; dS^T also goes through shared memory, for dQ, whose parts are added in a fixed order.
// Source: Dao, "FlashAttention-2" (2023), algorithm 2; Shah et al., "FlashAttention-3" (2024),
// section 3, for who does what. Bound by GEMMs: 10 s^2 d flops a head (half of it with the mask).
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/hopper/backward_memory.cuh"
#include "kernels/cuda/attention/hopper/softmax.cuh"
#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/hopper/tensor_map.hpp"
#include "kernels/cuda/hopper/tma.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"

namespace trireme::kernels::cuda {

// ---- dQ: a warpgroup's part of the sum over blocks of keys

/// The 64 x 64 elements of dQ of each tile that a warpgroup works out, of which a thread has 32 as
/// an accumulator.
template <typename T, int D>
struct BoxGradientShare {
  using Tile = BoxBackwardTile<D>;

  int row, column;  // of the first element in the tile and in the head

  __device__ BoxGradientShare(const AttentionBackwardParameters<T>& p,
                              const BoxBackwardWork<D>& work, int warpgroup, int thread)
      : row(Tile::kQueries == 128 ? 64 * warpgroup : 0),
        column(Tile::kQueries == 128 ? 0 : 64 * warpgroup),
        p_(p),
        work_(work),
        thread_(thread),
        dq_(p.dqkv + p.sizes.qkv_offset(work.task, 0) + column),
        partial_(p.partial_dq + std::int64_t{work.task} * work.tiles * kTileElements +
                 4 * (warpgroup * 128 + thread)) {}

  /// Adds `dq` to what the blocks before have added; the last, `is_last`, rounds the sum to rows of
  /// dq. The sums lie in the order of accumulators: 16 bytes a thread, side by side.
  __device__ __forceinline__ void add(float (&dq)[32], int tile, bool is_last) const {
    float* const partial = partial_ + std::int64_t{tile} * kTileElements;
    const int turn = work_.turn(tile, p_.sizes);
    if (is_last) {
      if (turn > 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          if (!has(n)) break;
          const float4 before = __ldcg(reinterpret_cast<const float4*>(partial) + kStep * n);
          dq[4 * n] += before.x;
          dq[4 * n + 1] += before.y;
          dq[4 * n + 2] += before.z;
          dq[4 * n + 3] += before.w;
        }
      }
      finish(dq, tile);
    } else {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (!has(n)) break;
        const float4 four{dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]};
        float4* const to = reinterpret_cast<float4*>(partial) + kStep * n;
        if (turn > 0) {
          reduce_add(to, four);
        } else {
          __stcg(to, four);
        }
      }
    }
  }

 private:
  static constexpr int kStep = Tile::kConsumers;
  static constexpr int kTileElements = Tile::kQueries * Tile::kPartialColumns;

  /// Whether columns 8 n .. 8 n + 7 are of the head.
  __device__ __forceinline__ bool has(int n) const {
    return Tile::kPartialColumns == D || column + 8 * n < D;
  }

  __device__ __forceinline__ void finish(const float (&dq)[32], int tile) const {
    const AttentionSizes& sizes = p_.sizes;
    const std::int64_t stride = sizes.qkv_stride();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = tile * Tile::kQueries + row + accumulator_row(thread_, 2 * half);
      if (query >= sizes.s) continue;
      T* const to = dq_ + query * stride + accumulator_column(thread_, 0);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (column + 8 * n >= sizes.d) continue;  // a multiple of 8
        *reinterpret_cast<std::uint32_t*>(to + 8 * n) =
            pack_pair<T>(dq[4 * n + 2 * half] * p_.scale, dq[4 * n + 2 * half + 1] * p_.scale);
      }
    }
  }

  const AttentionBackwardParameters<T>& p_;
  const BoxBackwardWork<D>& work_;
  int thread_;
  T* dq_;
  float* partial_;
};

// ---- the kernel

/// Rounds a 64 x (2 kCount) accumulator times `factor` as operand A.
template <typename T, int kCount>
__device__ __forceinline__ void round_operand(std::uint32_t (&a)[kCount / 8][4],
                                              const float (&from)[kCount], float factor) {
#pragma unroll
  for (int k = 0; k < kCount / 8; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[k][i] = pack_pair<T>(from[8 * k + 2 * i] * factor, from[8 * k + 2 * i + 1] * factor);
}

/// Writes operand A of a warpgroup to rows `row` .. row + 63 of a tile of kRows rows in shared
/// memory.
template <int kRows, int kSteps>
__device__ __forceinline__ void store_operand(unsigned char* tile, int row,
                                              const std::uint32_t (&a)[kSteps][4]) {
  const int lane = threadIdx.x % 32;
  row += threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    store_matrices(tile + tile_unit(kRows, row, 2 * k + lane / 16), a[k]);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The GEMMs of one block of keys and all between them, for a warpgroup. `place` is that of the
/// next tile of queries in its ring, `turn_parity` that of the next turn to add to dQ.
template <typename T, int D, bool kDropout, bool kDocuments>
__device__ __forceinline__ void multiply_block(const AttentionBackwardParameters<T>& p,
                                               const BoxBackwardMemory<T, D, kDocuments>& memory,
                                               const BoxBackwardWork<D>& work, int block_stage,
                                               RingPlace<BoxBackwardTile<D>::kStages>& place,
                                               unsigned& turn_parity) {
  using Tile = BoxBackwardTile<D>;
  constexpr int kQueries = Tile::kQueries, kKeys = Tile::kKeys;
  constexpr int kScores = kQueries / 2, kColumns = D / 2;  // accumulators a thread
  constexpr int kTogether = 1;                             // the barrier of all that multiply
  const AttentionSizes& sizes = p.sizes;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int warpgroup = threadIdx.x / 128 - 1;
  const int warpgroup_row = 64 * warpgroup;  // within the block's keys
  const int key_begin = work.key_begin + warpgroup_row;
  const std::uint32_t keys = shared_address(memory.keys(block_stage));
  const std::uint64_t own_keys = matrix_descriptor(keys + warpgroup_row * kPanelRowBytes, 0);
  const std::uint64_t own_values = matrix_descriptor(
      shared_address(memory.values(block_stage)) + warpgroup_row * kPanelRowBytes, 0);
  const HeadDropout dropout(p.dropout, work.task / sizes.heads, work.task % sizes.heads, sizes.s);
  const BoxGradientShare<T, D> share(p, work, warpgroup, thread);
  const std::uint64_t gradient_keys =
      matrix_descriptor(keys + share.column / kPanelColumns * kKeys * kPanelRowBytes, 0);
  float dk[kColumns] = {}, dv[kColumns] = {}, scores[kScores];
  // Starts K Q^T of the tile at `at`.
  const auto start_scores = [&](const RingPlace<Tile::kStages>& at) {
    const std::uint64_t queries = matrix_descriptor(shared_address(memory.queries(at.stage)), 0);
    wait(memory.queries_full(at.stage), at.parity);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      wgmma<T, 0, 0>(scores, advanced(own_keys, column_step(kKeys, k)),
                     advanced(queries, column_step(kQueries, k)), k > 0);
    warpgroup_commit_batch();
  };

  // `ahead`: the scores of the next tile are multiplied while dQ of this one is written.
  const auto multiply_tile = [&](int tile, auto ahead) {
    constexpr bool kAhead = decltype(ahead)::value;
    const int stage = place.stage, query_begin = tile * kQueries;
    // K and V times these, and P^T and dS^T times these: with k along and down the columns.
    const std::uint64_t queries =
        matrix_descriptor(shared_address(memory.queries(stage)), kQueries * kPanelRowBytes);
    const std::uint64_t douts =
        matrix_descriptor(shared_address(memory.douts(stage)), kQueries * kPanelRowBytes);

    // ---- P^T and dS^T -----------------------------------------------------------------------
    float dscores[kScores];
    if (!Tile::kAhead) start_scores(place);
    wait(memory.douts_full(stage), place.parity);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      wgmma<T, 0, 0>(dscores, advanced(own_values, column_step(kKeys, k)),
                     advanced(douts, column_step(kQueries, k)), k > 0);
    warpgroup_commit_batch();
    [[maybe_unused]] KeptQueries<kQueries / 8> kept;
    if constexpr (kDropout) kept.draw(dropout, query_begin, key_begin + thread / 32 * 16, lane);

    if (!Tile::kAhead) {
      warpgroup_wait<1>();
      warpgroup_fence_operand(scores);
    }
    if (needs_mask(query_begin, key_begin, 64, work.s, sizes.causal)) {
#pragma unroll
      for (int e = 0; e < kScores; ++e)
        if (!attends(query_begin + accumulator_column(thread, e),
                     key_begin + accumulator_row(thread, e), work.s, sizes.causal))
          scores[e] = -INFINITY;
    }
    wait(memory.statistics_full(stage), place.parity);
    if constexpr (kDocuments) {
      const int* const first_keys = memory.first_keys(stage);
      if (first_keys[kQueries - 1] > key_begin) {
#pragma unroll
        for (int e = 0; e < kScores; ++e)
          if (key_begin + accumulator_row(thread, e) < first_keys[accumulator_column(thread, e)])
            scores[e] = -INFINITY;
      }
    }
    const auto* lse2 = reinterpret_cast<const float2*>(memory.lse2(stage) + lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < kScores / 4; ++n) {
      const float2 two = lse2[4 * n];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[4 * n + e] = exp2_approximate(
            fmaf(scores[4 * n + e], p.scale * kLog2E, e % 2 == 0 ? -two.x : -two.y));
    }

    warpgroup_fence_operand(scores);  // while dP^T is multiplied
    warpgroup_wait<0>();
    warpgroup_fence_operand(dscores);
    const auto* delta = reinterpret_cast<const float2*>(memory.delta(stage) + lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < kScores / 4; ++n) {
      const float2 two = delta[4 * n];
#pragma unroll
      for (int e = 4 * n; e < 4 * n + 4; ++e) {
        const float row_delta = e % 2 == 0 ? two.x : two.y;
        if constexpr (kDropout) {
          const float probability = scores[e];
          scores[e] = kept(e) ? probability * p.dropout.kept : 0.0f;
          dscores[e] = fmaf(scores[e], dscores[e], -probability * row_delta);
        } else {
          dscores[e] = scores[e] * (dscores[e] - row_delta);
        }
      }
    }
    std::uint32_t weights[kScores / 8][4], dweights[kScores / 8][4];
    round_operand<T>(weights, scores, 1.0f);
    round_operand<T>(dweights, dscores, 1.0f);

    // ---- dV += P^T dO, dQ = dS K, dK += dS^T Q ------------------------------------------------
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k)
      wgmma<T, 1>(dv, weights[k], advanced(douts, row_step(k)));
    warpgroup_commit_batch();
    // The other warpgroup is at most one tile behind: it does not read this buffer any more.
    store_operand<kKeys>(memory.dscores(stage), warpgroup_row, dweights);
    publish_shared();
    named_barrier_sync(kTogether, Tile::kConsumers);

    float dq[32];
    const std::uint64_t scores_of_queries = matrix_descriptor(
        shared_address(memory.dscores(stage)) + share.row / kPanelColumns * kKeys * kPanelRowBytes,
        0);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      wgmma<T, 1, 1>(dq, advanced(scores_of_queries, row_step(k)),
                     advanced(gradient_keys, row_step(k)), k > 0);
    warpgroup_commit_batch();
    warpgroup_wait<1>();
    warpgroup_fence_operand(weights);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k)
      wgmma<T, 1>(dk, dweights[k], advanced(queries, row_step(k)));
    warpgroup_commit_batch();
    if constexpr (kAhead) {
      RingPlace<Tile::kStages> next = place;
      next.advance();
      start_scores(next);
    }

    warpgroup_wait<kAhead ? 2 : 1>();
    warpgroup_fence_operand(dq);
    wait(memory.turn_come(), turn_parity);
    turn_parity ^= 1;
    const int last_block = kDocuments ? memory.first_keys(stage)[0] / kKeys : 0;  // to add to dQ
    share.add(dq, tile, work.block == last_block);
    __syncwarp();
    if (lane == 0) arrive(memory.turn_taken());

    warpgroup_wait<kAhead ? 1 : 0>();
    warpgroup_fence_operand(dweights);
    arrive(memory.tile_empty(stage));
    if constexpr (kAhead) {
      warpgroup_wait<0>();  // the compiler wants none under way at the end of a loop's body
      warpgroup_fence_operand(scores);
    }
    place.advance();
  };

  if constexpr (Tile::kAhead) {
    start_scores(place);
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    for (int tile = work.first_tile; tile + 1 < work.end_tile; ++tile)
      multiply_tile(tile, std::true_type());
    multiply_tile(work.end_tile - 1, std::false_type());
  } else {
    for (int tile = work.first_tile; tile < work.end_tile; ++tile)
      multiply_tile(tile, std::false_type());
  }

  // ---- dK and dV, staged where K and V were -------------------------------------------------
  warpgroup_fence_operand(dk);
  warpgroup_fence_operand(dv);
  std::uint32_t rounded[kColumns / 8][4];
  round_operand<T>(rounded, dv, 1.0f);
  store_operand<kKeys>(memory.values(block_stage), warpgroup_row, rounded);
  named_barrier_sync(kTogether, Tile::kConsumers);  // both have multiplied all of K
  round_operand<T>(rounded, dk, p.scale);
  store_operand<kKeys>(memory.keys(block_stage), warpgroup_row, rounded);
  publish_shared();
  __syncwarp();
  if (lane == 0) arrive(memory.block_done(block_stage));
}

/// The warpgroups that multiply.
template <typename T, int D, bool kDropout, bool kDocuments>
__device__ __forceinline__ void multiply_blocks(const AttentionBackwardParameters<T>& p,
                                                const BoxBackwardMemory<T, D, kDocuments>& memory) {
  RingPlace<BoxBackwardTile<D>::kStages> place;
  unsigned turn_parity = 0;
  for_each_block<true>(memory, p.sizes, [&](const BoxBackwardWork<D>& work, int stage) {
    multiply_block<T, D, kDropout>(p, memory, work, stage, place, turn_parity);
  });
}

#endif

/// As many blocks of threads as there are processors.
template <typename T, int D, bool kDropout, bool kDocuments>
__global__ void __launch_bounds__(BoxBackwardTile<D>::kThreads, 1)
    attend_boxes_backward(const AttentionBackwardParameters<T> p,
                          const __grid_constant__ BoxBackwardMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = BoxBackwardTile<D>;
  const BoxBackwardMemory<T, D, kDocuments> memory;
  if (threadIdx.x == 0) memory.make_barriers();
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec<Tile::kCopyRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp == 0) {
      load_blocks(p, maps, memory);
    } else if (threadIdx.x % 32 == 0) {
      if (warp == 1) store_blocks(p, maps, memory);
      if (warp == 2) await_turns(p, memory);
      if (warp == 3) pass_turns(p, memory);
    }
  } else {
    setmaxnreg_inc<Tile::kMultiplyRegisters>();
    multiply_blocks<T, D, kDropout>(p, memory);
  }
#endif
}

/// attention_backward for heads padded to D, after the row statistics.
template <int D>
void launch_box_backward(const AttentionBackward& args, const Context& context) {
  using Tile = BoxBackwardTile<D>;
  dispatch_half(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto p = backward_parameters<T>(args, context);
    const std::int64_t s = p.sizes.s, b = p.sizes.b, heads = p.sizes.heads, d = p.sizes.d;
    const auto map = [&](const Tensor& tensor, std::int64_t of_sample) {
      return make_tensor_map<4>(args.qkv.dtype, tensor.data,
                                {{{d, 1, kPanelColumns},
                                  {of_sample, d, 1},
                                  {b, of_sample * d, 1},
                                  {s, b * of_sample * d, 64}}});
    };
    const KeyGradients<T>& gradients = p.key_gradients;
    const BoxBackwardMaps maps{
        .qkv = map(args.qkv, p.sizes.all_heads()),
        .dout = map(args.dout, heads),
        .key_gradients = make_tensor_map<3>(
            args.qkv.dtype, gradients.data,
            {{{d, 1, kPanelColumns}, {b * gradients.all_heads, d, 1}, {s, gradients.stride, 64}}})};
    const std::int64_t works = b * heads * tiles_of(p.sizes.s, Tile::kKeys);
    dispatch_flag(p.dropout.mask.threshold > 0, [&](auto dropout) {
      dispatch_flag(args.document_start != nullptr, [&](auto documents) {
        launch(attend_boxes_backward<T, D, decltype(dropout)::value, decltype(documents)::value>,
               works < context.sms ? works : context.sms, Tile::kThreads, Tile::kSharedBytes,
               context, p, maps);
      });
    });
  });
}

}  // namespace trireme::kernels::cuda
