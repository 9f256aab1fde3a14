// dQ in the backward pass on Hopper: a warpgroup's part of the sum over blocks of keys.
#pragma once

#include "kernels/cuda/attention/hopper/backward_memory.cuh"
#include "kernels/cuda/hopper/tma.cuh"

namespace trireme::kernels::cuda {

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
        partial_(p.partial_dq + std::int64_t{work.task} * work.tiles * Tile::kQueries * D +
                 4 * (warpgroup * 128 + thread)) {}

  /// Adds `dq` to what the blocks before have added; the last, `is_last`, rounds the sum to rows of
  /// dq. The sums lie in the order of accumulators: 16 bytes a thread, side by side.
  __device__ __forceinline__ void add(float (&dq)[32], int tile, bool is_last) const {
    float* const partial = partial_ + std::int64_t{tile} * Tile::kQueries * D;
    const int turn = work_.turn(tile, p_.sizes);
    if (is_last) {
      if (turn > 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
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

}  // namespace trireme::kernels::cuda
