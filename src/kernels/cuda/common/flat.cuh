// Plain kernels over a flat buffer, parts of which decay.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/stretches.hpp"
#include "kernels/cuda/preconditions.hpp"

namespace trireme::kernels::cuda {

inline constexpr int kFlatThreads = 256;

/// Elements that one block searches the stretches for at once.
inline constexpr std::int64_t kFlatChunk = 4096;

/// Runs function(i, inside) for the elements i of a buffer.
template <typename Function>
__global__ void __launch_bounds__(kFlatThreads)
    compute_flat(Function function, std::int64_t size, Stretches stretches) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * kFlatChunk;
  const std::int64_t end = min(size, begin + kFlatChunk);
  const ChunkStretches chunk(stretches, begin, end);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kFlatThreads)
    function(i, chunk.contains(i));
}

/// Queues compute_flat over `size` elements.
template <typename Function>
void launch_flat(const Function& function, std::int64_t size, const Stretches& stretches,
                 const Context& context) {
  if (size == 0) return;
  const auto blocks = static_cast<unsigned>((size + kFlatChunk - 1) / kFlatChunk);
  compute_flat<<<blocks, kFlatThreads, 0, context.stream>>>(function, size, stretches);
  TRIREME_CUDA_LAUNCHED(compute_flat);
}

}  // namespace trireme::kernels::cuda
