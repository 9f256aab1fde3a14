// Tensor cores from shared memory: copies, mma.sync, fragments, and GEMMs of tiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/tiles.hpp"
#include "kernels/cuda/common/elements.cuh"

namespace trireme::kernels::cuda {

/// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8, and gets elements
/// 2 (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The same of the transposed matrices.
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
/// Two transposed matrices, of the addresses that lanes 0 .. 15 give.
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}

/// c += a b: a 16 x 16, b 16 x 8 of T, c 16 x 8 of float.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&c)[4],
                                                            const std::uint32_t (&a)[4],
                                                            std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_add<__half>(float (&c)[4], const std::uint32_t (&a)[4],
                                                     std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two values rounded to T, the first in the low half.
template <typename T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <>
__device__ __forceinline__ std::uint32_t pack_pair<__half>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// 2^x to 2 units in the last place; 0 for results below 2^-126.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Waits until another block has set `*turn` to `expected`; sees what that block wrote before.
__device__ __forceinline__ void wait_for_turn(const unsigned* turn, unsigned expected) {
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != expected);
}
/// Sets `*turn`, after everything that this thread, and others before the last barrier, wrote.
__device__ __forceinline__ void pass_turn(unsigned* turn, unsigned next) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

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
