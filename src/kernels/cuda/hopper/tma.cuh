// TMA: bulk copies and reductions between global and shared memory.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/hopper/barriers.cuh"

namespace trireme::kernels::cuda {

/// Shared memory aligned as panels have to be.
__device__ __forceinline__ unsigned char* aligned_shared_memory() {
  extern __shared__ __align__(1024) unsigned char panels[];
  return panels;
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Starts copying the box at (x, y, z, w), zeros where it leaves the tensor, to shared memory;
/// `barrier` counts its bytes.
__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, Barrier* barrier,
                                         int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

/// Starts copying shared memory to the box at (x, y, z), without what leaves the tensor.
__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* shared, int x, int y,
                                          int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
          &map),
      "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

/// The same for matrices: the box whose first element is at (column, row).
__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, Barrier* barrier,
                                         int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}
/// Loads the box into the shared memory of every block of the cluster whose bit is set in `blocks`,
/// at the same address in each; the barrier at `barrier`'s address in each counts the bytes.
__device__ __forceinline__ void tma_load_multicast(void* shared, const CUtensorMap& map,
                                                   Barrier* barrier, int column, int row,
                                                   std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* shared, int column,
                                          int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
          &map),
      "r"(shared_address(shared)), "r"(column), "r"(row)
      : "memory");
}
/// Closes a group of stores.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until this thread's stores have read the shared memory.
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Waits until all but the last kLeft groups of this thread's stores have read the shared memory.
template <int kLeft>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

/// Orders this thread's writes to shared memory before what tensor cores and bulk copies, started
/// after the next barrier, read there.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Writes four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8, and holds
/// elements 2 (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void store_matrices(void* row, const std::uint32_t (&from)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
      : "memory");
}

/// *to += value, element by element, without waiting for it. The order in which threads add is
/// theirs to keep.
__device__ __forceinline__ void reduce_add(float4* to, float4 value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

__device__ __forceinline__ void reduce_add(float2* to, float2 value) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(value.x),
               "f"(value.y)
               : "memory");
}

}  // namespace trireme::kernels::cuda
