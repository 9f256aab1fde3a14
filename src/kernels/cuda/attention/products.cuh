// Fragments of tiles in shared memory, and products of tiles: what both passes are made of.
#pragma once

#include "kernels/cuda/attention/primitives.cuh"
#include "kernels/cuda/attention/tiles.hpp"

namespace trireme::kernels::cuda {

/// Rounds 16 x (8 kTiles) accumulators into rows of shared memory, from `to` on: rows 0 .. 7 times
/// `low_factor`, rows 8 .. 15 times `high_factor`.
template <typename T, int kTiles>
__device__ __forceinline__ void store_fragments(T* to, int stride, const float (&from)[kTiles][4],
                                                float low_factor, float high_factor, int lane) {
  T* row = to + fragment_row(lane) * stride + fragment_column(lane);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    *reinterpret_cast<std::uint32_t*>(row + 8 * n) =
        pack_pair<T>(from[n][0] * low_factor, from[n][1] * low_factor);
    *reinterpret_cast<std::uint32_t*>(row + 8 * stride + 8 * n) =
        pack_pair<T>(from[n][2] * high_factor, from[n][3] * high_factor);
  }
}

/// The columns 16 step .. 16 step + 15 of 16 x (8 kTiles) accumulators, rounded, as fragment A.
template <typename T, int kTiles>
__device__ __forceinline__ void pack_scores(std::uint32_t (&a)[4], const float (&from)[kTiles][4],
                                            int step) {
  a[0] = pack_pair<T>(from[2 * step][0], from[2 * step][1]);
  a[1] = pack_pair<T>(from[2 * step][2], from[2 * step][3]);
  a[2] = pack_pair<T>(from[2 * step + 1][0], from[2 * step + 1][1]);
  a[3] = pack_pair<T>(from[2 * step + 1][2], from[2 * step + 1][3]);
}

/// The addresses that lane `lane` gives to load_matrices and load_transposed for a fragment of a
/// matrix in shared memory whose first element is at `tile`.
/// A (16 x 16) of a row-major matrix; also B (16 k x 16 n) of a row-major one, transposed.
template <typename T>
__device__ __forceinline__ T* fragment_a(T* tile, int stride, int lane) {
  return tile + lane % 16 * stride + lane / 16 * 8;
}
/// B (16 k x 16 n) of a matrix stored with n as rows; also A (16 x 16) of a matrix stored with k as
/// rows, transposed.
template <typename T>
__device__ __forceinline__ T* fragment_b(T* tile, int stride, int lane) {
  return tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
}

/// c += A B^T: A [16 kRowTiles, D] at `rows` and B [8 kColumnTiles, D] at `columns` in shared
/// memory.
template <typename T, int D, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void multiply_rows(float (&c)[kRowTiles][kColumnTiles][4], const T* rows,
                                              const T* columns, int lane) {
  constexpr int kStride = tile_stride(D);
  rows = fragment_a(rows, kStride, lane);
  columns = fragment_b(columns, kStride, lane);
#pragma unroll
  for (int k_step = 0; k_step < D / 16; ++k_step) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) load_matrices(a[r], rows + 16 * r * kStride + 16 * k_step);
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, columns + 8 * n * kStride + 16 * k_step);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add<T>(c[r][n], a[r], b[0], b[1]);
        multiply_add<T>(c[r][n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/// c += A B: A the accumulators `weights`, rounded, B [8 kWeightTiles, 8 kColumnTiles] at `rows` in
/// shared memory.
template <typename T, int kStride, int kRowTiles, int kColumnTiles, int kWeightTiles>
__device__ __forceinline__ void multiply_weights(float (&c)[kRowTiles][kColumnTiles][4],
                                                 const float (&weights)[kRowTiles][kWeightTiles][4],
                                                 const T* rows, int lane) {
  rows = fragment_a(rows, kStride, lane);
#pragma unroll
  for (int k_step = 0; k_step < kWeightTiles / 2; ++k_step) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) pack_scores<T>(a[r], weights[r], k_step);
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      std::uint32_t b[4];
      load_transposed(b, rows + 16 * k_step * kStride + 8 * n);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add<T>(c[r][n], a[r], b[0], b[1]);
        multiply_add<T>(c[r][n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

}  // namespace trireme::kernels::cuda
