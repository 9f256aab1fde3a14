// The forward pass on tensor cores: mma.sync, for compute capability 8.0 and newer. Source: Dao,
// "FlashAttention-2" (2023), algorithm 1. Bound by GEMMs for long sequences: 4 s^2 d flops a
// head (half of it with the mask) against 8 s d bytes.
#pragma once

#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/parameters.cuh"

namespace trireme::kernels::cuda {

/// What a warp knows of its rows so far: the largest score and the sum of the exponentials, each of
/// the rows g and g + 8 of every 16-row tile. The sums are those of this thread's columns.
template <int kRowTiles>
struct RunningSoftmax {
  float largest[kRowTiles][2];
  float sum[kRowTiles][2];

  __device__ RunningSoftmax() {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[r][h] = -INFINITY;
        sum[r][h] = 0.0f;
      }
  }

  /// Replaces scores by exp2(scale (score - largest)) and scales what was summed before likewise.
  /// Every row has a score above -infinity by then: tiles come in descending order of keys and
  /// begin at multiples of a warp's rows, so that a warp's first tile holds a key of each row.
  template <int kKeyTiles, int kColumnTiles>
  __device__ void update(float (&scores)[kRowTiles][kKeyTiles][4],
                         float (&out)[kRowTiles][kColumnTiles][4], float scale) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = largest[r][h];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
          most = fmaxf(most, fmaxf(scores[r][n][2 * h], scores[r][n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float offset = most * scale;
        const float correction = exp2_approximate(largest[r][h] * scale - offset);
        largest[r][h] = most;
        sum[r][h] *= correction;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          out[r][n][2 * h] *= correction;
          out[r][n][2 * h + 1] *= correction;
        }
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            scores[r][n][e] = exp2_approximate(fmaf(scores[r][n][e], scale, -offset));
            sum[r][h] += scores[r][n][e];
          }
      }
  }

  /// The sum over all columns of a row.
  __device__ float total(int r, int h) const {
    float all = sum[r][h];
    all += __shfl_xor_sync(~0u, all, 1);
    return all + __shfl_xor_sync(~0u, all, 2);
  }
};

/// One block per 128 queries (64 for heads above 128) of one head. With documents, tiles of keys
/// before those of a block's, or of a warp's, queries are passed over.
template <typename T, int D, bool kDropout, bool kDocuments>
__global__ void __launch_bounds__(ForwardTile<D>::kThreads, 2)
    attend_tiles(const AttentionForwardParameters<T> p) {
  using Tile = ForwardTile<D>;
  constexpr int kRowTiles = Tile::kRowTiles, kKeyTiles = Tile::kKeys / 8, kStride = Tile::kStride;
  constexpr int kKeyElements = Tile::kKeys * kStride;

  const AttentionSizes& sizes = p.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Blocks with the most keys first, so that the short ones fill the gaps at the end; those of one
  // head together, so that its keys stay in the L2 cache.
  const int blocks = tiles_of(sizes.s, Tile::kQueries);
  const int task = static_cast<int>(blockIdx.x) / blocks;
  const int query_begin = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * Tile::kQueries;
  const int s = sizes.length(task);
  if (query_begin >= s) return;
  const int warp_query = query_begin + warp * Tile::kWarpQueries;
  const FirstKeys first_keys = first_keys_of(kDocuments ? p.document_start : nullptr, sizes, task);
  const int first_tile = first_keys.first_key_tile(query_begin, Tile::kKeys);
  const std::int64_t stride = sizes.qkv_stride();
  const T* q = p.qkv + sizes.qkv_offset(task, 0) + query_begin * stride;
  const T* k = p.qkv + sizes.qkv_offset(task, 1);
  const T* v = p.qkv + sizes.qkv_offset(task, 2);

  T* queries = reinterpret_cast<T*>(shared_memory());
  T* keys = queries + Tile::kQueries * kStride;
  T* values = keys + Tile::kStages * kKeyElements;
  T* warp_queries = queries + warp * Tile::kWarpQueries * kStride;

  const auto load_tile = [&](T* to, const T* from, int tile, int stage) {
    const int begin = tile * Tile::kKeys;
    load_rows<Tile::kThreads, Tile::kKeys, D>(to + stage * kKeyElements, from + begin * stride,
                                              stride, s - begin, sizes);
  };
  const auto load_queries = [&](std::uint32_t(&a)[kRowTiles][4], int k_step) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      load_matrices(a[r], fragment_a(warp_queries + 16 * r * kStride + 16 * k_step, kStride, lane));
  };

  // ---- first loads ----------------------------------------------------------------------------
  int tile = tiles_of(keys_end(s, query_begin + Tile::kQueries, sizes.causal), Tile::kKeys) - 1;
  load_rows<Tile::kThreads, Tile::kQueries, D>(queries, q, stride, s - query_begin, sizes);
  commit_copies();
  load_tile(keys, k, tile, 0);
  if (Tile::kStages == 2) load_tile(values, v, tile, 0);
  commit_copies();

  std::uint32_t q_fragments[Tile::kQueriesInRegisters ? D / 16 : 1][kRowTiles][4];
  if constexpr (Tile::kQueriesInRegisters) {
    wait_copies<1>();
    __syncthreads();
#pragma unroll
    for (int k_step = 0; k_step < D / 16; ++k_step) load_queries(q_fragments[k_step], k_step);
  }

  float out[kRowTiles][D / 8][4] = {};
  RunningSoftmax<kRowTiles> softmax;

  // ---- tiles of keys, from the last -----------------------------------------------------------
  for (int stage = 0; tile >= first_tile; --tile) {
    const int key_begin = tile * Tile::kKeys;
    const bool active = !all_masked(warp_query, Tile::kWarpQueries, key_begin, s, sizes.causal) &&
                        !first_keys.all_behind(warp_query, key_begin + Tile::kKeys);
    wait_copies<0>();
    __syncthreads();
    if (Tile::kStages == 1) {
      load_tile(values, v, tile, 0);
    } else if (tile > first_tile) {
      load_tile(keys, k, tile - 1, stage ^ 1);
      load_tile(values, v, tile - 1, stage ^ 1);
    }
    commit_copies();

    float scores[kRowTiles][kKeyTiles][4] = {};
    if (active) {
      const T* fragments = fragment_b(keys + stage * kKeyElements, kStride, lane);
#pragma unroll
      for (int k_step = 0; k_step < D / 16; ++k_step) {
        if constexpr (!Tile::kQueriesInRegisters) load_queries(q_fragments[0], k_step);
        const auto& a = q_fragments[Tile::kQueriesInRegisters ? k_step : 0];
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
          std::uint32_t b[4];
          load_matrices(b, fragments + 8 * n * kStride + 16 * k_step);
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            multiply_add<T>(scores[r][n], a[r], b[0], b[1]);
            multiply_add<T>(scores[r][n + 1], a[r], b[2], b[3]);
          }
        }
      }
    }
    if constexpr (Tile::kStages == 1) {
      wait_copies<0>();
      __syncthreads();
      if (tile > first_tile) load_tile(keys, k, tile - 1, 0);
      commit_copies();
    }
    if (active) {
      if (needs_mask(warp_query, key_begin, Tile::kKeys, s, sizes.causal) ||
          first_keys.cut(warp_query + Tile::kWarpQueries, key_begin)) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int query = warp_query + 16 * r + fragment_row(lane) + 8 * (e / 2);
              const int key = key_begin + 8 * n + fragment_column(lane) + e % 2;
              if (!attends(query, key, s, sizes.causal) || first_keys.hide(query, key))
                scores[r][n][e] = -INFINITY;
            }
      }
      softmax.update(scores, out, p.scale * kLog2E);
      if constexpr (kDropout) {
        const HeadDropout dropout(p.dropout, task / sizes.heads, task % sizes.heads, sizes.s);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          std::uint32_t kept[2];
          draw_queries<kKeyTiles>(kept, dropout, warp_query + 16 * r, key_begin, lane);
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if (!(kept[e / 2] >> (4 * n + e % 2) & 1)) scores[r][n][e] = 0.0f;
        }
      }
      multiply_weights<T, kStride>(out, scores, values + stage * kKeyElements, lane);
    }
    if (Tile::kStages == 2) stage ^= 1;
  }

  // ---- results: each warp stages its rows where its queries were ------------------------------
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const float low = softmax.total(r, 0), high = softmax.total(r, 1);
    const float kept = kDropout ? p.dropout.kept : 1.0f;
    store_fragments<T>(warp_queries + 16 * r * kStride, kStride, out[r], kept / low, kept / high,
                       lane);
    const int query = warp_query + 16 * r + fragment_row(lane);
    float* lse = p.lse + std::int64_t{task} * sizes.s;
    if (lane % 4 == 0 && query < s) lse[query] = softmax.largest[r][0] * p.scale + logf(low);
    if (lane % 4 == 0 && query + 8 < s)
      lse[query + 8] = softmax.largest[r][1] * p.scale + logf(high);
  }
  __syncwarp();
  if (warp_query < s) {
    store_rows<32, Tile::kWarpQueries, D>(
        p.out + sizes.out_offset(task) + warp_query * sizes.out_stride(), warp_queries,
        sizes.out_stride(), s - warp_query, sizes, lane);
  }
}

/// attention_forward for 16-bit types and heads padded to D.
template <int D>
void launch_forward(const AttentionForward& args, const Context& context) {
  using Tile = ForwardTile<D>;
  dispatch_half(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto p = forward_parameters<T>(args);
    const std::int64_t blocks =
        std::int64_t{p.sizes.b} * p.sizes.heads * tiles_of(p.sizes.s, Tile::kQueries);
    dispatch_flag(p.dropout.mask.threshold > 0, [&](auto dropout) {
      dispatch_flag(args.document_start != nullptr, [&](auto documents) {
        launch(attend_tiles<T, D, decltype(dropout)::value, decltype(documents)::value>, blocks,
               Tile::kThreads, Tile::kSharedBytes, context, p);
      });
    });
  });
}

}  // namespace trireme::kernels::cuda
