// Bound by bytes: reads each element once.
#include <algorithm>

#include "core/cuda/check.hpp"
#include "kernels/cuda/preconditions.hpp"
#include "kernels/optimizer.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1024;

template <typename Bits>
__global__ void __launch_bounds__(kThreads)
    add_checksum(const Bits* x, std::int64_t size, unsigned long long* out) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  unsigned long long sum = 0;
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += stride)
    sum += x[i] * checksum_weight(static_cast<std::uint64_t>(i));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, distance);
  // Addition modulo 2^64 gives the same sum in any order.
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

}  // namespace

void checksum(const Checksum& args, const Context& context) {
  const std::int64_t size = args.x.size();
  if (size == 0) return;
  const auto blocks = static_cast<unsigned>(std::min((size + kThreads - 1) / kThreads, kMaxBlocks));
  auto* out = reinterpret_cast<unsigned long long*>(args.out);
  const auto launch = [&](auto bits) {
    add_checksum<<<blocks, kThreads, 0, context.stream>>>(
        static_cast<const decltype(bits)*>(args.x.data), size, out);
    TRIREME_CUDA_LAUNCHED(add_checksum);
  };
  switch (size_of(args.x.dtype)) {
    case 8:
      return launch(std::uint64_t{});
    case 4:
      return launch(std::uint32_t{});
    case 2:
      return launch(std::uint16_t{});
    default:
      return launch(std::uint8_t{});
  }
}

}  // namespace trireme::kernels::cuda
