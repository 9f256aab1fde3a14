// mbarriers, named barriers, registers of warps, and clusters of thread blocks.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma.cuh"

namespace trireme::kernels::cuda {

/// A barrier in shared memory: its phase ends, and the next begins, when as many threads as it was
/// made for have arrived and the bytes they announced have been copied.
using Barrier = std::uint64_t;

__device__ __forceinline__ void make_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
/// Lets bulk copies see the barriers that this thread made; a __syncthreads has to follow.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// `barrier` is an address in shared memory.
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive(Barrier* barrier) { arrive(shared_address(barrier)); }
/// Arrives and announces `bytes`, which copies that are started next will bring.
__device__ __forceinline__ void arrive_expect_tx(Barrier* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
/// Waits until the phase of parity `parity` has ended: 0, 1, 0 ... from the first on; the phase
/// before the first, of parity 1, counts as ended.
__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}
__device__ __forceinline__ void wait(Barrier* barrier, unsigned parity) {
  wait(shared_address(barrier), parity);
}

/// *from, read by the first lane for its whole warp: it is the one that arrives when the warp is
/// done.
__device__ __forceinline__ int read_for_warp(const int* from) {
  int value = 0;
  if (threadIdx.x % 32 == 0) value = *from;
  return __shfl_sync(~0u, value, 0);
}

/// A place in a ring of kStages buffers and the parity of the turn around it.
template <int kStages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Barrier `id` (1 .. 15) of the block, at which `threads` threads, whole warps, wait for each
/// other.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Registers a thread may use from here on, a multiple of 8; the whole warpgroup calls it.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
#endif

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
