// Tiles of a matrix that is converted to FP8 in both layouts.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"

namespace trireme::kernels::cuda {

// A block converts a tile of kTile rows and columns of x, in passes of kPassRows rows: a thread
// reads 4 rows of 8 elements, so that the bytes of a column's 4 rows make a word. The words of the
// transposed tile wait in shared memory; word w of a column lies at w ^ swizzle(column): neither
// the writes of a warp (16 groups of columns, two words) nor its reads (two columns' 16 pairs of
// words) meet in a bank.
constexpr int kTile = 128;
constexpr int kThreads = 256;
constexpr int kWidth = 8;
constexpr int kRows = 4;
constexpr int kColumnGroups = kTile / kWidth;
constexpr int kPassRows = kThreads / kColumnGroups * kRows;
constexpr int kWords = kTile / 4;
static_assert(kColumnGroups == 16 && kTile % kPassRows == 0);

__device__ __forceinline__ int swizzle(int column) { return column / kWidth * 2; }

template <__nv_fp8_interpretation_t kType>
__device__ __forceinline__ std::uint32_t fp8_pair(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kType);
}

/// An element, or its GELU.
template <bool kGelu, typename T>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kGelu)
    return x * Gelu<T>(x).s;
  else
    return x;
}

/// The bytes of 4 rows of 4 columns as 4 words, one for each column.
__device__ __forceinline__ void transpose_bytes(const std::uint32_t (&rows)[kRows],
                                                std::uint32_t (&columns)[4]) {
  const std::uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140);
  const std::uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const std::uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140);
  const std::uint32_t high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

/// Leaves the bytes of 4 rows from `first` and 8 columns from `column` in the transposed tile.
__device__ __forceinline__ void keep_transposed(std::uint32_t (&tile)[kTile * kWords],
                                                const uint2 (&bytes)[kRows], int column,
                                                int first) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t in_rows[kRows], in_columns[4];
#pragma unroll
    for (int i = 0; i < kRows; ++i) in_rows[i] = half == 0 ? bytes[i].x : bytes[i].y;
    transpose_bytes(in_rows, in_columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int local = column + half * 4 + i;
      tile[local * kWords + ((first / 4) ^ swizzle(local))] = in_columns[i];
    }
  }
}

/// Writes the whole block's tile to `transposed` [columns, rows].
__device__ __forceinline__ void write_transposed(const std::uint32_t (&tile)[kTile * kWords],
                                                 std::uint8_t* transposed, std::int64_t rows,
                                                 std::int64_t columns) {
  constexpr int kPairs = kWords / 2;
  const std::int64_t top = std::int64_t{blockIdx.y} * kTile;
#pragma unroll 4
  for (int i = threadIdx.x; i < kTile * kPairs; i += kThreads) {
    const int local = i / kPairs, word = i % kPairs * 2;
    const std::int64_t at = std::int64_t{blockIdx.x} * kTile + local, row = top + word * 4;
    if (at >= columns || row >= rows) continue;
    *reinterpret_cast<uint2*>(transposed + at * rows + row) =
        *reinterpret_cast<const uint2*>(&tile[local * kWords + (word ^ swizzle(local))]);
  }
}

}  // namespace trireme::kernels::cuda
