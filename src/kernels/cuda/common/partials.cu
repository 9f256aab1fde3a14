#include "kernels/cuda/common/partials.hpp"

#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kColumns = 32;  // of a block: a cache line of each partial row
constexpr int kRows = 16;
constexpr int kBatch = 16;  // loads of a thread in flight: those of 256 partial rows
constexpr int kSumThreads = 256;

__global__ void __launch_bounds__(kColumns* kRows)
    sum_partial_columns(const float* partials, std::int64_t count, PartialTargets targets) {
  __shared__ float sums[kRows][kColumns];
  wait_for_previous_kernel();
  const std::int64_t columns = targets.count * targets.width;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + threadIdx.x;
  float sum = 0.0f;
  for (std::int64_t first = threadIdx.y; first < count && column < columns;
       first += kRows * kBatch) {
    float values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int64_t row = first + i * kRows;
      values[i] = row < count ? partials[row * columns + column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum += values[i];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int i = 1; i < kRows; ++i) sum += sums[i][threadIdx.x];
  const int target = static_cast<int>(column / targets.width);
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (i == target && targets.vectors[i] != nullptr)
      targets.vectors[i][column - i * targets.width] += sum;
}

__global__ void __launch_bounds__(kSumThreads)
    sum_partials(const double* partials, int count, double* out) {
  wait_for_previous_kernel();
  double sum = 0.0;
  for (int i = threadIdx.x; i < count; i += kSumThreads) sum += partials[i];
  sum = block_sum<kSumThreads>(sum);
  if (threadIdx.x == 0) *out += sum;
}

}  // namespace

void add_partial_columns(const float* partials, std::int64_t count, const PartialTargets& targets,
                         const Context& context) {
  const std::int64_t columns = targets.count * targets.width;
  const auto blocks = static_cast<unsigned>((columns + kColumns - 1) / kColumns);
  launch_dependent(sum_partial_columns, blocks, dim3(kColumns, kRows), 0, context, partials, count,
                   targets);
  TRIREME_CUDA_LAUNCHED(sum_partial_columns);
}

void add_partial_sum(const double* partials, int count, double* out, const Context& context) {
  launch_dependent(sum_partials, 1, kSumThreads, 0, context, partials, count, out);
  TRIREME_CUDA_LAUNCHED(sum_partials);
}

}  // namespace trireme::kernels::cuda
