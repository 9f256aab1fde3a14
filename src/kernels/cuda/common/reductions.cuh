// Sums over the threads of a warp and of a block, each in a fixed order.
#pragma once

namespace trireme::kernels::cuda {

/// The sum of the warp's values, the same bits in every lane.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}

/// The sum of the values of a block of kThreads threads; holds in thread 0.
template <int kThreads>
__device__ __forceinline__ double block_sum(double value) {
  __shared__ double sums[kThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) value += sums[warp];
  }
  return value;
}

}  // namespace trireme::kernels::cuda
