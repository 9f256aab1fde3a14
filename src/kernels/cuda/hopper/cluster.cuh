// Thread block clusters: blocks on neighbouring SMs that see each other's shared memory. Source:
// PTX ISA, "Cooperative thread arrays" and "mapa".
#pragma once

#include "kernels/cuda/hopper/barriers.cuh"

namespace trireme::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The index of this block in its cluster.
__device__ __forceinline__ int cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

/// Waits for all threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// Arrives at the barrier that block `rank` of the cluster has at `barrier`'s address.
__device__ __forceinline__ void arrive_at(Barrier* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

/// Writes `value` to block `rank`'s shared memory at `to`'s address, and counts its bytes at the
/// barrier that the block has at `barrier`'s address. Does not wait.
__device__ __forceinline__ void store_at(int* to, int value, Barrier* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 address, counter;\n"
      "mapa.shared::cluster.u32 address, %0, %3;\n"
      "mapa.shared::cluster.u32 counter, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [address], %1, [counter];\n"
      "}" ::"r"(shared_address(to)),
      "r"(value), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

#endif

}  // namespace trireme::kernels::cuda
