// Launches of kernels over the elements of tensors and of flat buffers, and sums over the rows of
// matrices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cuda/check.hpp"
#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {

/// Waits until the kernels before this one on its stream are complete and their writes are visible.
/// Every thread of a kernel that launch_dependent() launches calls it before it touches memory.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Enqueues `kernel`, which starts with wait_for_previous_kernel(), as a dependent launch on Hopper
/// and as a normal one elsewhere. The caller checks the launch with TRIREME_CUDA_LAUNCHED.
template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                      std::size_t shared_bytes, const Context& context,
                      const Arguments&... arguments) {
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = &dependent;
  config.numAttrs = context.is_hopper() ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

/// Functions that raise an amax: function.largest() is the LargestMagnitude that their store() or
/// compute() gets as its last argument, and to which it shows what it writes.
template <typename Function>
concept RaisesAmax = requires(const Function& function) {
  function.largest();
};

/// The same for other functions: nothing.
template <typename Function>
__device__ __forceinline__ auto largest_of(const Function& function) {
  if constexpr (RaisesAmax<Function>)
    return function.largest();
  else
    return nullptr;
}

inline constexpr int kElementwiseThreads = 256;

/// Runs function.store(i, function.load(i)) for the groups i of a tensor, function.kUnroll of them
/// a thread: all loads of a thread are issued before its first store, which may alias them.
template <typename Function>
__global__ void __launch_bounds__(kElementwiseThreads)
    compute_elements(Function function, std::int64_t groups) {
  constexpr int kUnroll = Function::kUnroll;
  wait_for_previous_kernel();
  [[maybe_unused]] auto largest = largest_of(function);
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (kElementwiseThreads * kUnroll) + threadIdx.x;
  typename Function::Inputs inputs[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = first + u * kElementwiseThreads;
    if (i < groups) inputs[u] = function.load(i);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = first + u * kElementwiseThreads;
    if (i >= groups) continue;
    if constexpr (RaisesAmax<Function>)
      function.store(i, inputs[u], largest);
    else
      function.store(i, inputs[u]);
  }
  if constexpr (RaisesAmax<Function>) largest.raise();
}

/// Queues compute_elements over `groups` groups.
template <typename Function>
void launch_elements(const Function& function, std::int64_t groups, const Context& context) {
  if (groups == 0) return;
  constexpr std::int64_t kGroups = kElementwiseThreads * Function::kUnroll;
  const auto blocks = static_cast<unsigned>((groups + kGroups - 1) / kGroups);
  launch_dependent(compute_elements<Function>, blocks, kElementwiseThreads, 0, context, function,
                   groups);
  TRIREME_CUDA_LAUNCHED(compute_elements);
}

/// Lets a function of rows and columns compute the groups of kWidth elements of a matrix.
template <typename Function, int kWidth>
struct ByRow {
  static constexpr int kUnroll = Function::kUnroll;
  using Inputs = typename Function::Inputs;

  Function function;
  Divisor groups_per_row;

  __device__ Inputs load(std::int64_t i) const {
    const std::uint32_t row = groups_per_row.quotient(static_cast<std::uint32_t>(i));
    return function.load(row, column(i, row));
  }
  template <typename... Largest>
  __device__ void store(std::int64_t i, const Inputs& inputs, Largest&... largest) const {
    const std::uint32_t row = groups_per_row.quotient(static_cast<std::uint32_t>(i));
    function.store(row, column(i, row), inputs, largest...);
  }
  __device__ auto largest() const requires RaisesAmax<Function> { return function.largest(); }

 private:
  __device__ std::uint32_t column(std::int64_t i, std::uint32_t row) const {
    return (static_cast<std::uint32_t>(i) - row * groups_per_row.divisor()) * kWidth;
  }
};

/// Queues function.store(row, column, function.load(row, column)) for the groups of kWidth columns
/// of a matrix. Below 2^31 groups.
template <int kWidth, typename Function>
void launch_rows(const char* op, const Function& function, const Extents& extents,
                 const Context& context) {
  const std::int64_t groups = extents.rows * (extents.columns / kWidth);
  TRIREME_CHECK(groups < std::int64_t{1} << 31, "{}: {} rows of {} are more than 2^31 groups of {}",
                op, extents.rows, extents.columns, kWidth);
  if (groups == 0) return;
  const Divisor groups_per_row(static_cast<std::uint32_t>(extents.columns / kWidth));
  launch_elements(ByRow<Function, kWidth>{function, groups_per_row}, groups, context);
}

inline constexpr int kFlatThreads = 256;

/// Elements that one block searches the ranges for together.
inline constexpr std::int64_t kFlatChunk = 4096;

/// Runs function(i, inside) for the elements i of a buffer.
template <typename Function>
__global__ void __launch_bounds__(kFlatThreads)
    compute_flat(Function function, std::int64_t size, IndexRanges ranges) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * kFlatChunk;
  const std::int64_t end = min(size, begin + kFlatChunk);
  const ChunkRanges chunk(ranges, begin, end);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kFlatThreads)
    function(i, chunk.contains(i));
}

/// Queues compute_flat over `size` elements.
template <typename Function>
void launch_flat(const Function& function, std::int64_t size, const IndexRanges& ranges,
                 const Context& context) {
  if (size == 0) return;
  const auto blocks = static_cast<unsigned>((size + kFlatChunk - 1) / kFlatChunk);
  compute_flat<<<blocks, kFlatThreads, 0, context.stream>>>(function, size, ranges);
  TRIREME_CUDA_LAUNCHED(compute_flat);
}

// ---- sums over the rows of a matrix whose elements are computed on the way

// Blocks own a strip of
// columns and a chunk of rows; a thread keeps one group of columns and strides over the rows.
// Partial sums go through the workspace and are added in a fixed order.

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
  [[maybe_unused]] auto largest = largest_of(function);
  const int lane = threadIdx.x % kLanes, own_row = threadIdx.x / kLanes;
  const std::int64_t column = std::int64_t{blockIdx.x} * kStrip + lane * kWidth;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = min(rows, begin + rows_per_chunk);
  Values<kWidth> sums = {};
  const auto compute = [&](std::int64_t offset, const typename Function::Inputs& inputs) {
    if constexpr (RaisesAmax<Function>)
      return function.compute(offset, inputs, largest);
    else
      return function.compute(offset, inputs);
  };
  const auto add = [&](std::int64_t offset, const typename Function::Inputs& inputs) {
    const Values<kWidth> values = compute(offset, inputs);
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
  if constexpr (RaisesAmax<Function>) largest.raise();
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
