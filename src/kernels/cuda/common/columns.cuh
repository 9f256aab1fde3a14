// Sums over the rows of a matrix whose elements are computed on the way. Blocks own a strip of
// columns and a chunk of rows; a lane keeps one group of columns, a warp strides over the rows.
// Partial sums go through the workspace and are added in a fixed order.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {

inline constexpr int kColumnLanes = 32;
inline constexpr int kColumnWarps = 8;
inline constexpr int kColumnBlocksPerMultiprocessor = 4;

/// Writes to partials [gridDim.y, columns] the sums over the rows of each chunk of
/// function.compute(offset, function.load(offset)), offset being that of a group of kWidth
/// elements.
template <int kWidth, typename Function>
__global__ void __launch_bounds__(kColumnLanes* kColumnWarps, kColumnBlocksPerMultiprocessor)
    sum_columns(Function function, std::int64_t rows, std::int64_t columns,
                std::int64_t rows_per_chunk, float* partials) {
  constexpr int kStrip = kColumnLanes * kWidth;
  constexpr int kUnroll = Function::kUnroll;
  __shared__ Values<kWidth> shared[kColumnWarps][kColumnLanes];
  const int lane = threadIdx.x % kColumnLanes, warp = threadIdx.x / kColumnLanes;
  const std::int64_t column = std::int64_t{blockIdx.x} * kStrip + lane * kWidth;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = min(rows, begin + rows_per_chunk);
  Values<kWidth> sums = {};
  if (column < columns) {
    for (std::int64_t first = begin + warp; first < end; first += kColumnWarps * kUnroll) {
      typename Function::Inputs inputs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t row = first + u * kColumnWarps;
        if (row < end) inputs[u] = function.load(row * columns + column);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t row = first + u * kColumnWarps;
        if (row >= end) break;
        const Values<kWidth> values = function.compute(row * columns + column, inputs[u]);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
      }
    }
  }
  shared[warp][lane] = sums;
  __syncthreads();
  const int own = threadIdx.x;
  const std::int64_t own_column = std::int64_t{blockIdx.x} * kStrip + own;
  if (own >= kStrip || own_column >= columns) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kColumnWarps; ++i) sum += shared[i][own / kWidth][own % kWidth];
  partials[std::int64_t{blockIdx.y} * columns + own_column] = sum;
}

/// Adds the column sums of the values that `function` computes to out [extents.columns]. Needs
/// column_sums_workspace(extents.columns) bytes of workspace.
template <int kWidth, typename Function>
void add_column_sums(const Function& function, const Extents& extents, float* out,
                     const Context& context) {
  constexpr std::int64_t kStrip = kColumnLanes * kWidth;
  static_assert(kStrip <= kColumnLanes * kColumnWarps, "a thread sums one column of a strip");
  if (extents.rows == 0 || extents.columns == 0) return;
  // As many blocks as run at once; more would only leave more partial sums.
  const std::int64_t blocks =
      std::min(kColumnBlocksPerMultiprocessor * context.multiprocessors, kMaxColumnBlocks);
  const std::int64_t strips = (extents.columns + kStrip - 1) / kStrip;
  const std::int64_t most = (extents.rows + kColumnWarps - 1) / kColumnWarps;
  const std::int64_t wanted = std::clamp<std::int64_t>(blocks / strips, 1, most);
  const std::int64_t rows_per_chunk = (extents.rows + wanted - 1) / wanted;
  const std::int64_t chunks = (extents.rows + rows_per_chunk - 1) / rows_per_chunk;
  auto* partials = reinterpret_cast<float*>(context.workspace);
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(chunks));
  sum_columns<kWidth><<<grid, kColumnLanes * kColumnWarps, 0, context.stream>>>(
      function, extents.rows, extents.columns, rows_per_chunk, partials);
  TRIREME_CUDA_LAUNCHED(sum_columns);
  add_partial_columns(partials, chunks, {.width = extents.columns, .vectors = {out}}, context);
}

}  // namespace trireme::kernels::cuda
