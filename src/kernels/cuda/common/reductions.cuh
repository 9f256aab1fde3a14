// Sums over the threads of a warp, of a team of warps and of a block, each in a fixed order.
#pragma once

#include <cstdint>

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

/// Warps of one block that work on one row, among several such teams. Teams never wait for each
/// other: each has a barrier of its own.
struct Team {
  int index;    ///< among the block's teams, at most 15
  int member;   ///< this thread's number in the team
  int threads;  ///< of the team, a multiple of 32

  __device__ explicit Team(int team_threads)
      : index(threadIdx.x / team_threads),
        member(threadIdx.x - index * team_threads),
        threads(team_threads) {}

  __device__ __forceinline__ void wait() const {
    // Barrier 0 is that of __syncthreads().
    asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(threads) : "memory");
  }
};

/// Shared memory for the sums of a block of at most 512 threads.
template <int kValues>
struct alignas(16) TeamSums {
  static constexpr int kWarps = 16;
  float values[kWarps][kValues];
};

/// Replaces each of `values` by its sum over the team, the same bits in every thread. `sums` must
/// not be that of the team's previous call: a caller who alternates between two needs no barrier
/// besides the one in here, which all threads pass only after they have read the previous one.
template <int kValues>
__device__ __forceinline__ void team_sum(const Team& team, float (&values)[kValues],
                                         TeamSums<kValues>& sums) {
#pragma unroll
  for (float& value : values) value = warp_sum(value);
  if (team.threads == 32) return;
  const int warps = team.threads / 32;
  const int first_warp = team.index * warps;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) sums.values[threadIdx.x / 32][i] = values[i];
  }
  team.wait();
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = sums.values[first_warp][i];
  for (int warp = 1; warp < warps; ++warp) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += sums.values[first_warp + warp][i];
  }
}

}  // namespace trireme::kernels::cuda
