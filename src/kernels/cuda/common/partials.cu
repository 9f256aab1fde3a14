#include "kernels/cuda/common/partials.hpp"

#include "core/cuda/check.hpp"
#include "kernels/cuda/common/reductions.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kColumns = 32;  // of a block: a cache line of each partial row
constexpr int kRows = 16;
constexpr int kSumThreads = 256;

__global__ void __launch_bounds__(kColumns* kRows)
    sum_partial_columns(const float* partials, std::int64_t count, std::int64_t columns,
                        float* first, std::int64_t split, float* second) {
  __shared__ float sums[kRows][kColumns];
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t i = threadIdx.y; i < count; i += kRows) sum += partials[i * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int i = 1; i < kRows; ++i) sum += sums[i][threadIdx.x];
  float* out = column < split ? first + column : second + (column - split);
  *out += sum;
}

__global__ void __launch_bounds__(kSumThreads)
    sum_partials(const double* partials, int count, double* out) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < count; i += kSumThreads) sum += partials[i];
  sum = block_sum<kSumThreads>(sum);
  if (threadIdx.x == 0) *out += sum;
}

}  // namespace

void add_partial_columns(const float* partials, std::int64_t count, std::int64_t columns,
                         float* first, std::int64_t split, float* second, const Context& context) {
  const auto blocks = static_cast<unsigned>((columns + kColumns - 1) / kColumns);
  sum_partial_columns<<<blocks, dim3(kColumns, kRows), 0, context.stream>>>(
      partials, count, columns, first, split, second);
  TRIREME_CUDA_LAUNCHED(sum_partial_columns);
}

void add_partial_sum(const double* partials, int count, double* out, const Context& context) {
  sum_partials<<<1, kSumThreads, 0, context.stream>>>(partials, count, out);
  TRIREME_CUDA_LAUNCHED(sum_partials);
}

}  // namespace trireme::kernels::cuda
