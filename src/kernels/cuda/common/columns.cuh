// Sums over the rows of a matrix whose elements are computed on the way. Blocks own a strip of
// columns and a chunk of rows; a thread keeps one group of columns and strides over the rows.
// Partial sums go through the workspace and are added in a fixed order.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {

inline constexpr int kColumnThreads = 256;
inline constexpr int kColumnBlocksPerSm = 4;

/// Lanes that share a row of a strip: 128 bytes of it in 16-byte groups, or single elements.
template <int kWidth>
inline constexpr int kColumnLanes = kWidth == 1 ? 32 : 8;

/// Writes to partials [gridDim.y, columns] the sums over the rows of each chunk of
/// function.compute(offset, function.load(offset)), offset being that of a group of kWidth
/// elements.
template <int kWidth, typename Function>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocksPerSm)
    sum_columns(Function function, std::int64_t rows, std::int64_t columns,
                std::int64_t rows_per_chunk, float* partials) {
  constexpr int kLanes = kColumnLanes<kWidth>, kStrip = kLanes * kWidth;
  constexpr int kRows = kColumnThreads / kLanes;  // that a block reads at a time
  constexpr int kUnroll = Function::kUnroll;
  static_assert(kStrip <= kColumnThreads, "a thread sums one column of a strip");
  __shared__ Values<kWidth> shared[kRows][kLanes];
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kLanes, own_row = threadIdx.x / kLanes;
  const std::int64_t column = std::int64_t{blockIdx.x} * kStrip + lane * kWidth;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = min(rows, begin + rows_per_chunk);
  Values<kWidth> sums = {};
  const auto add = [&](std::int64_t offset, const typename Function::Inputs& inputs) {
    const Values<kWidth> values = function.compute(offset, inputs);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
  };
  if (column < columns) {
    const std::int64_t step = kRows * columns;
    std::int64_t row = begin + own_row, offset = row * columns + column;
    for (; row + (kUnroll - 1) * kRows < end; row += kUnroll * kRows, offset += kUnroll * step) {
      typename Function::Inputs inputs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) inputs[u] = function.load(offset + u * step);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add(offset + u * step, inputs[u]);
    }
    for (; row < end; row += kRows, offset += step) add(offset, function.load(offset));
  }
  shared[own_row][lane] = sums;
  __syncthreads();
  const int own = threadIdx.x;
  const std::int64_t own_column = std::int64_t{blockIdx.x} * kStrip + own;
  if (own >= kStrip || own_column >= columns) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; ++i) sum += shared[i][own / kWidth][own % kWidth];
  partials[std::int64_t{blockIdx.y} * columns + own_column] = sum;
}

/// Adds the column sums of the values that `function` computes to out [extents.columns]. Needs
/// column_sums_workspace(extents.columns) bytes of workspace.
template <int kWidth, typename Function>
void add_column_sums(const Function& function, const Extents& extents, float* out,
                     const Context& context) {
  constexpr std::int64_t kStrip = kColumnLanes<kWidth> * kWidth;
  constexpr std::int64_t kRows = kColumnThreads / kColumnLanes<kWidth>;
  static_assert(kStrip <= 256, "column_sums_workspace counts on it");
  if (extents.rows == 0 || extents.columns == 0) return;
  // As many blocks as run concurrently; more would only leave more partial sums.
  const std::int64_t blocks = std::min(kColumnBlocksPerSm * context.sms, kMaxColumnBlocks);
  const std::int64_t strips = (extents.columns + kStrip - 1) / kStrip;
  const std::int64_t most = (extents.rows + kRows - 1) / kRows;
  const std::int64_t wanted = std::clamp<std::int64_t>(blocks / strips, 1, most);
  const std::int64_t rows_per_chunk = (extents.rows + wanted - 1) / wanted;
  const std::int64_t chunks = (extents.rows + rows_per_chunk - 1) / rows_per_chunk;
  auto* partials = reinterpret_cast<float*>(context.workspace);
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(chunks));
  launch_dependent(sum_columns<kWidth, Function>, grid, kColumnThreads, 0, context, function,
                   extents.rows, extents.columns, rows_per_chunk, partials);
  TRIREME_CUDA_LAUNCHED(sum_columns);
  add_partial_columns(partials, chunks, {.width = extents.columns, .vectors = {out}}, context);
}

}  // namespace trireme::kernels::cuda
