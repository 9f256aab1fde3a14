// Bound by bytes: reads each element once.
#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/fp8.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // loads of a thread that are under way
constexpr int kBlocksPerSm = 4;

template <bool kGelu, int kWidth, typename T>
__device__ __forceinline__ unsigned largest_of(const Elements<T, kWidth>& elements) {
  Values<kWidth> values = widen(elements);
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kGelu) values[i] *= Gelu<T>(values[i]).s;
    largest = max(largest, __float_as_uint(values[i]) & 0x7FFFFFFFu);
  }
  return largest;
}

// Magnitudes are compared by their bits: NaN is the largest. The maximum does not depend on the
// order of the blocks.
template <typename T, int kWidth, bool kGelu>
__global__ void __launch_bounds__(kThreads)
    find_amax(const T* x, std::int64_t size, unsigned* amax) {
  const std::int64_t groups = size / kWidth;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  unsigned largest = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; first < groups;
       first += kUnroll * stride) {
    Elements<T, kWidth> elements[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = first + u * stride;
      if (i < groups) elements[u] = load<kWidth>(x + i * kWidth);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u * stride < groups) largest = max(largest, largest_of<kGelu>(elements[u]));
  }
  if (blockIdx.x == 0 && groups * kWidth + threadIdx.x < size)
    largest = max(largest, largest_of<kGelu>(load<1>(x + groups * kWidth + threadIdx.x)));
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  __shared__ unsigned of_warps[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  largest =
      __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < kThreads / 32 ? of_warps[threadIdx.x] : 0u);
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

}  // namespace

void amax(const Amax& args, const Context& context) {
  const std::int64_t size = args.x.size();
  check_vector("amax", "x", args.x, args.x.dtype, size);
  check_vector("amax", "amax", args.amax, DType::f32, 1);
  TRIREME_CUDA(cudaMemsetAsync(args.amax.data, 0, sizeof(float), context.stream));
  if (size == 0) return;
  dispatch_cuda(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    const auto launch = [&](auto width, auto gelu) {
      const std::int64_t block = std::int64_t{kThreads} * kUnroll * width;
      const auto blocks = static_cast<unsigned>(
          std::min<std::int64_t>((size + block - 1) / block, kBlocksPerSm * context.sms));
      find_amax<T, width, gelu><<<blocks, kThreads, 0, context.stream>>>(
          x, size, reinterpret_cast<unsigned*>(args.amax.as<float>()));
      TRIREME_CUDA_LAUNCHED(find_amax);
    };
    dispatch_width<T>(aligned16(x), [&](auto width) {
      if (args.gelu)
        launch(width, std::true_type{});
      else
        launch(width, std::false_type{});
    });
  });
}

}  // namespace trireme::kernels::cuda
