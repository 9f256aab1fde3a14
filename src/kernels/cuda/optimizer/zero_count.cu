// Bound by bytes: reads 4 an element.
#include "kernels/optimizer.hpp"

#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Elements that one block searches the ranges for together.
constexpr std::int64_t kChunk = 8192;

template <int kWidth>
__device__ int zeros_of(const Elements<float, kWidth>& elements, const ChunkRanges& counted,
                        std::int64_t i) {
  const Values<kWidth> values = widen(elements);
  int zeros = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) zeros += values[k] == 0.0f && counted.contains(i + k);
  return zeros;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    count_zeros(const float* x, std::int64_t size, IndexRanges counted, double* partials) {
  // A thread sees at most size / (kSumBlocks * kThreads) elements, far below 2^31.
  int zeros = 0;
  for (std::int64_t begin = blockIdx.x * kChunk; begin < size; begin += kSumBlocks * kChunk) {
    const std::int64_t end = min(size, begin + kChunk);
    const std::int64_t whole = end - (end - begin) % kWidth;
    const ChunkRanges ranges(counted, begin, end);
    if (ranges.uniform() && !ranges.contains(begin)) continue;
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x * kWidth; i < whole; i += kThreads * kWidth)
      zeros += zeros_of(load<kWidth>(x + i), ranges, i);
    if (whole + threadIdx.x < end)
      zeros += zeros_of(load<1>(x + whole + threadIdx.x), ranges, whole + threadIdx.x);
  }
  const double sum = block_sum<kThreads>(static_cast<double>(zeros));
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

}  // namespace

void zero_count(const ZeroCount& args, const Context& context) {
  const std::int64_t size = args.x.size();
  check_vector("zero_count", "x", args.x, DType::f32, size);
  check_vector("zero_count", "out", args.out, DType::f64, 1);
  check_workspace("zero_count", context, squared_sum_workspace());
  if (size == 0) return;
  const float* x = args.x.as<float>();
  auto* partials = reinterpret_cast<double*>(context.workspace);
  dispatch_width<float>(aligned16(x), [&](auto width) {
    count_zeros<width>
        <<<kSumBlocks, kThreads, 0, context.stream>>>(x, size, args.counted, partials);
    TRIREME_CUDA_LAUNCHED(count_zeros);
  });
  add_partial_sum(partials, kSumBlocks, args.out.as<double>(), context);
}

}  // namespace trireme::kernels::cuda
