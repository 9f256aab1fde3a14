// The backward pass on tensor cores: mma.sync, for compute capability 8.0 and newer. A block owns
// keys and walks over tiles of queries; scores are computed with keys as rows, so that P^T and dS^T
// go from accumulators to operands without leaving registers. Source: Dao, "FlashAttention-2"
// (2023), algorithm 2; the fixed order in which dQ is summed is ours. Bound by GEMMs: 10 s^2 d
// flops a head (half of it with the mask).
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/parameters.cuh"

namespace trireme::kernels::cuda {

// ---- dQ: the shared memory of a block, and its part of the sum over blocks

/// The shared memory of a block.
template <typename T, int D, bool kCompact>
struct BackwardMemory {
  using Tile = BackwardTile<D, kCompact>;
  static constexpr int kStride = Tile::kStride;

  T* keys;                    // [kKeys, kStride]
  T* values;                  // [kKeys, kStride]
  T* queries;                 // [kStages, kQueries, kStride]
  T* douts;                   // [kStages, kQueries, kStride]
  T* dscores;                 // [kKeys, kScoreStride], dS^T
  RowStatistics* statistics;  // [kStages, kQueries]
  unsigned* ticket;

  __device__ BackwardMemory()
      : keys(reinterpret_cast<T*>(shared_memory())),
        values(keys + Tile::kKeys * kStride),
        queries(values + Tile::kKeys * kStride),
        douts(queries + Tile::kStages * Tile::kQueries * kStride),
        dscores(douts + Tile::kStages * Tile::kQueries * kStride),
        statistics(reinterpret_cast<RowStatistics*>(dscores + Tile::kKeys * Tile::kScoreStride)),
        ticket(reinterpret_cast<unsigned*>(statistics + Tile::kStages * Tile::kQueries)) {}
};

/// One warp's part of dQ = dS K for one tile of queries.
template <typename T, int D, bool kCompact>
struct QueryGradient {
  using Tile = BackwardTile<D, kCompact>;
  static constexpr int kRowTiles = Tile::kQueries / 16 / Tile::kQueryWarps;
  static constexpr int kColumnTiles = D / 8 / Tile::kColumnWarps;

  float sum[kRowTiles][kColumnTiles][4] = {};

  __device__ static int row(int warp) { return warp / Tile::kColumnWarps * 16 * kRowTiles; }
  __device__ static int column(int warp) { return warp % Tile::kColumnWarps * 8 * kColumnTiles; }

  __device__ __forceinline__ void multiply(const BackwardMemory<T, D, kCompact>& memory, int warp,
                                           int lane) {
    const T* scores = fragment_b(memory.dscores + row(warp), Tile::kScoreStride, lane);
    const T* keys = fragment_a(memory.keys + column(warp), Tile::kStride, lane);
#pragma unroll
    for (int k_step = 0; k_step < Tile::kKeys / 16; ++k_step) {
      std::uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        load_transposed(a[r], scores + 16 * k_step * Tile::kScoreStride + 16 * r);
      const T* step_keys = keys + 16 * k_step * Tile::kStride;
#pragma unroll
      for (int n = 0; n + 1 < kColumnTiles; n += 2) {
        std::uint32_t b[4];
        load_transposed(b, step_keys + 8 * n);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply_add<T>(sum[r][n], a[r], b[0], b[1]);
          multiply_add<T>(sum[r][n + 1], a[r], b[2], b[3]);
        }
      }
      if constexpr (kColumnTiles % 2 == 1) {
        std::uint32_t b[2];
        load_transposed(b, step_keys + 8 * (kColumnTiles - 1));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r)
          multiply_add<T>(sum[r][kColumnTiles - 1], a[r], b[0], b[1]);
      }
    }
  }

  /// Adds the sums of the blocks before this one.
  __device__ __forceinline__ void add(const QueryGradient& before) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[r][n][e] += before.sum[r][n][e];
  }

  /// Reads or writes partial sums, in the order of fragments: 16 bytes a thread, side by side. They
  /// pass the L1 cache by, which does not see what other blocks write.
  __device__ __forceinline__ void load(const float* partial) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const float4 four = __ldcg(fragment(partial, r, n));
        sum[r][n][0] = four.x;
        sum[r][n][1] = four.y;
        sum[r][n][2] = four.z;
        sum[r][n][3] = four.w;
      }
  }
  __device__ __forceinline__ void store(float* partial) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
        __stcg(const_cast<float4*>(fragment(partial, r, n)),
               float4{sum[r][n][0], sum[r][n][1], sum[r][n][2], sum[r][n][3]});
  }

  /// Rounds the sums times `factor` to rows of dq, of which there are `rows`.
  __device__ __forceinline__ void finish(T* dq, std::int64_t stride, int rows, float factor,
                                         const AttentionSizes& sizes, int warp, int lane) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row(warp) + 16 * r + fragment_row(lane) + 8 * half;
        if (query >= rows) continue;
        T* to = dq + query * stride;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          const int c = column(warp) + 8 * n + fragment_column(lane);
          const float low = sum[r][n][2 * half] * factor, high = sum[r][n][2 * half + 1] * factor;
          if (sizes.access_bytes >= 4) {
            if (c < sizes.d) *reinterpret_cast<std::uint32_t*>(to + c) = pack_pair<T>(low, high);
          } else {
            if (c < sizes.d) to[c] = from_float<T>(low);
            if (c + 1 < sizes.d) to[c + 1] = from_float<T>(high);
          }
        }
      }
  }

 private:
  __device__ static const float4* fragment(const float* partial, int r, int n) {
    return reinterpret_cast<const float4*>(partial) + (r * kColumnTiles + n) * Tile::kThreads +
           threadIdx.x;
  }
};

// ---- the kernel

/// Starts copying the statistics of kQueries rows; zeros from `rows` on, which with zero rows of Q
/// and dO leave dK and dV as they are.
template <int kThreads, int kQueries>
__device__ __forceinline__ void load_statistics(RowStatistics* shared, const RowStatistics* global,
                                                int rows) {
  static_assert(kQueries <= kThreads);
  const int row = threadIdx.x;
  if (row < kQueries) copy_async<8>(shared + row, row < rows ? global + row : global, row < rows);
}

/// One block per kKeys keys of one head. With documents, it walks on to the last queries of that of
/// its last key.
template <typename T, int D, bool kDropout, bool kDocuments, bool kCompact>
__global__ void __launch_bounds__(BackwardTile<D, kCompact>::kThreads,
                                  BackwardTile<D, kCompact>::kBlocksPerSm)
    attend_tiles_backward(const AttentionBackwardParameters<T> p) {
  using Tile = BackwardTile<D, kCompact>;
  constexpr int kStride = Tile::kStride, kKeyTiles = Tile::kKeyTiles;
  constexpr int kPartTiles = Tile::kPart / 8, kColumnTiles = D / 8 / Tile::kSplit;
  constexpr int kTileElements = Tile::kQueries * kStride;

  const BackwardMemory<T, D, kCompact> memory;
  const AttentionSizes& sizes = p.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // ---- which keys: blocks take tickets, so that one waits only for such as have begun before ----
  if (threadIdx.x == 0) *memory.ticket = atomicAdd(p.ticket, 1u);
  __syncthreads();
  const int ticket = static_cast<int>(*memory.ticket);
  const int blocks = tiles_of(sizes.s, Tile::kKeys);
  const int all_tiles = tiles_of(sizes.s, Tile::kQueries);
  const int task = ticket / blocks, block = blocks - 1 - ticket % blocks;
  const int key_begin = block * Tile::kKeys;
  const int s = sizes.length(task), tiles = tiles_of(s, Tile::kQueries);
  if (key_begin >= s) return;
  const int warp_row = warp / Tile::kSplit * Tile::kWarpKeys;  // within the block's keys
  const int warp_column = warp % Tile::kSplit * 8 * kColumnTiles;

  const std::int64_t stride = sizes.qkv_stride(), out_stride = sizes.out_stride();
  const T* q = p.qkv + sizes.qkv_offset(task, 0);
  const T* dout = p.dout + sizes.out_offset(task);
  const RowStatistics* statistics = p.statistics + std::int64_t{task} * sizes.s;
  unsigned* turns = p.turns + std::int64_t{task} * all_tiles;
  float* partial_dq = p.partial_dq + std::int64_t{task} * all_tiles * Tile::kQueries * D;

  const auto load_tile = [&](int tile, int stage) {
    const int begin = tile * Tile::kQueries;
    load_rows<Tile::kThreads, Tile::kQueries, D>(memory.queries + stage * kTileElements,
                                                 q + begin * stride, stride, s - begin, sizes);
    load_rows<Tile::kThreads, Tile::kQueries, D>(memory.douts + stage * kTileElements,
                                                 dout + begin * out_stride, out_stride, s - begin,
                                                 sizes);
    load_statistics<Tile::kThreads, Tile::kQueries>(memory.statistics + stage * Tile::kQueries,
                                                    statistics + begin, s - begin);
  };

  const FirstKeys first_keys = first_keys_of(kDocuments ? p.document_start : nullptr, sizes, task);
  const int first_tile = first_query_tile(key_begin, Tile::kQueries, sizes.causal);
  int end_tile = tiles;
  if constexpr (kDocuments)
    end_tile = query_tiles_end<Tile::kQueries, Tile::kThreads>(
        first_keys, first_tile, tiles, key_begin + Tile::kKeys, static_cast<int>(threadIdx.x),
        [](bool reaches) { return __syncthreads_count(reaches); });
  for (const int part : {1, 2}) {
    load_rows<Tile::kThreads, Tile::kKeys, D>(
        part == 1 ? memory.keys : memory.values,
        p.qkv + sizes.qkv_offset(task, part) + key_begin * stride, stride, s - key_begin, sizes);
  }
  load_tile(first_tile, 0);
  commit_copies();

  float dk[kKeyTiles][kColumnTiles][4] = {}, dv[kKeyTiles][kColumnTiles][4] = {};

  // ---- tiles of queries -----------------------------------------------------------------------
  for (int tile = first_tile, stage = 0; tile < end_tile; ++tile) {
    const int turn = turn_of(tile, block, Tile::kQueries, Tile::kKeys, s, sizes.causal);
    wait_copies<0>();
    __syncthreads();
    if (threadIdx.x == 0 && tile > first_tile) {
      pass_turn(turns + tile - 1,
                1 + turn_of(tile - 1, block, Tile::kQueries, Tile::kKeys, s, sizes.causal));
    }
    if (Tile::kStages == 2 && tile + 1 < end_tile) load_tile(tile + 1, stage ^ 1);
    commit_copies();

    const T* queries = memory.queries + stage * kTileElements;
    const T* douts = memory.douts + stage * kTileElements;
#pragma unroll 1
    for (int part = 0; part < Tile::kQueries; part += Tile::kPart) {
      const int query_begin = tile * Tile::kQueries + part;
      T* to = memory.dscores + warp_row * Tile::kScoreStride + part;
      const int warp_key = key_begin + warp_row;
      if (all_masked(query_begin, Tile::kPart, warp_key, s, sizes.causal) ||
          first_keys.all_behind(query_begin, warp_key + Tile::kWarpKeys)) {
        constexpr float kZeros[kPartTiles][4] = {};
#pragma unroll
        for (int r = 0; r < kKeyTiles; ++r)
          store_fragments<T>(to + 16 * r * Tile::kScoreStride, Tile::kScoreStride, kZeros, 0.0f,
                             0.0f, lane);
        continue;
      }
      const float4* rows = reinterpret_cast<const float4*>(
          memory.statistics + stage * Tile::kQueries + part + fragment_column(lane));

      // P^T, without the dropped probabilities once dP^T needs them no more.
      float scores[kKeyTiles][kPartTiles][4] = {};
      multiply_rows<T, D>(scores, memory.keys + warp_row * kStride, queries + part * kStride, lane);
      if (needs_mask(query_begin, warp_key, Tile::kWarpKeys, s, sizes.causal) ||
          first_keys.cut(query_begin + Tile::kPart, warp_key)) {
#pragma unroll
        for (int r = 0; r < kKeyTiles; ++r)
#pragma unroll
          for (int n = 0; n < kPartTiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int key = warp_key + 16 * r + fragment_row(lane) + 8 * (e / 2);
              const int query = query_begin + 8 * n + fragment_column(lane) + e % 2;
              if (!attends(query, key, s, sizes.causal) || first_keys.hide(query, key))
                scores[r][n][e] = -INFINITY;
            }
      }
#pragma unroll
      for (int n = 0; n < kPartTiles; ++n) {
        const float4 two = rows[4 * n];
#pragma unroll
        for (int r = 0; r < kKeyTiles; ++r)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            scores[r][n][e] = exp2_approximate(
                fmaf(scores[r][n][e], p.scale * kLog2E, e % 2 == 0 ? -two.x : -two.z));
      }

      // dS^T = P^T (dP^T - delta), dP^T with the factors of dropout.
      float dscores[kKeyTiles][kPartTiles][4] = {};
      multiply_rows<T, D>(dscores, memory.values + warp_row * kStride, douts + part * kStride,
                          lane);
      std::uint32_t kept[kKeyTiles][4];
      if constexpr (kDropout) {
        const HeadDropout dropout(p.dropout, task / sizes.heads, task % sizes.heads, sizes.s);
#pragma unroll
        for (int r = 0; r < kKeyTiles; ++r)
          draw_keys<kPartTiles>(kept[r], dropout, query_begin, warp_key + 16 * r, lane);
      }
#pragma unroll
      for (int n = 0; n < kPartTiles; ++n) {
        const float4 two = rows[4 * n];
#pragma unroll
        for (int r = 0; r < kKeyTiles; ++r)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float probability = scores[r][n][e];
            float dprobability = dscores[r][n][e];
            if constexpr (kDropout) {
              const bool keep = kept[r][e] >> 4 * n & 1;
              dprobability = keep ? dprobability * p.dropout.kept : 0.0f;
              if (!keep) scores[r][n][e] = 0.0f;
            }
            dscores[r][n][e] = probability * (dprobability - (e % 2 == 0 ? two.y : two.w));
          }
      }
      if (warp % Tile::kSplit == 0) {
#pragma unroll
        for (int r = 0; r < kKeyTiles; ++r)
          store_fragments<T>(to + 16 * r * Tile::kScoreStride, Tile::kScoreStride, dscores[r], 1.0f,
                             1.0f, lane);
      }
      multiply_weights<T, kStride>(dv, scores, douts + part * kStride + warp_column, lane);
      multiply_weights<T, kStride>(dk, dscores, queries + part * kStride + warp_column, lane);
    }

    // ---- dQ of the tile, after the blocks whose turn comes before -----------------------------
    if (threadIdx.x == 0 && turn > 0) wait_for_turn(turns + tile, turn);
    __syncthreads();
    if (Tile::kStages == 1) {
      if (tile + 1 < end_tile) load_tile(tile + 1, 0);
      commit_copies();
    }
    float* partial = partial_dq + std::int64_t{tile} * Tile::kQueries * D;
    QueryGradient<T, D, kCompact> before, dq;
    if (turn > 0) before.load(partial);  // under way during the GEMMs
    dq.multiply(memory, warp, lane);
    dq.add(before);
    if (block == first_keys.first_key_tile(tile * Tile::kQueries, Tile::kKeys)) {
      const int begin = tile * Tile::kQueries;
      dq.finish(p.dqkv + sizes.qkv_offset(task, 0) + begin * stride, stride, s - begin, p.scale,
                sizes, warp, lane);
    } else {
      dq.store(partial);
    }
    if (Tile::kStages == 2) stage ^= 1;
  }

  // ---- dK and dV, staged where K and V were ---------------------------------------------------
  __syncthreads();
  if (threadIdx.x == 0) {
    pass_turn(turns + end_tile - 1,
              1 + turn_of(end_tile - 1, block, Tile::kQueries, Tile::kKeys, s, sizes.causal));
  }
  const float kept = kDropout ? p.dropout.kept : 1.0f;
#pragma unroll
  for (int r = 0; r < kKeyTiles; ++r) {
    const int at = (warp_row + 16 * r) * kStride + warp_column;
    store_fragments<T>(memory.keys + at, kStride, dk[r], p.scale, p.scale, lane);
    store_fragments<T>(memory.values + at, kStride, dv[r], kept, kept, lane);
  }
  __syncthreads();
  for (const int part : {1, 2}) {
    const std::int64_t gradient_stride = p.key_gradients.stride;
    store_rows<Tile::kThreads, Tile::kKeys, D>(
        p.key_gradients.rows(sizes, task, part) + key_begin * gradient_stride,
        part == 1 ? memory.keys : memory.values, gradient_stride, s - key_begin, sizes,
        threadIdx.x);
  }
}

/// attention_backward for 16-bit types and heads padded to D, after the row statistics.
template <int D>
void launch_backward(const AttentionBackward& args, const Context& context) {
  // Heads up to 64 fit everywhere; above, compute capability 8.6 takes smaller tiles.
  const bool compact = D > 64 && context.shared_memory_bytes < BackwardTile<D, false>::kSharedBytes;
  const auto queue = [&](auto zero, auto is_compact) {
    using T = decltype(zero);
    constexpr bool kCompact = decltype(is_compact)::value;
    using Tile = BackwardTile<D, kCompact>;
    const auto p = backward_parameters<T>(args, context);
    const std::int64_t blocks =
        std::int64_t{p.sizes.b} * p.sizes.heads * tiles_of(p.sizes.s, Tile::kKeys);
    dispatch_flag(p.dropout.mask.threshold > 0, [&](auto dropout) {
      dispatch_flag(args.document_start != nullptr, [&](auto documents) {
        launch(attend_tiles_backward<T, D, decltype(dropout)::value, decltype(documents)::value,
                                     kCompact>,
               blocks, Tile::kThreads, Tile::kSharedBytes, context, p);
      });
    });
  };
  dispatch_half(args.qkv.dtype, [&](auto zero) {
    if (compact) {
      queue(zero, std::bool_constant<(D > 64)>());
    } else {
      queue(zero, std::false_type());
    }
  });
}

}  // namespace trireme::kernels::cuda
