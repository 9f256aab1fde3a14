// dQ in the backward pass: the shared memory of a block, and its part of the sum over blocks.
#pragma once

#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/attention/rows.cuh"

namespace trireme::kernels::cuda {

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

}  // namespace trireme::kernels::cuda
