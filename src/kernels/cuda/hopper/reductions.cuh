// Additions in global memory, for compute capability 9.0 and newer.
#pragma once

#include <cuda_runtime.h>

namespace trireme::kernels::cuda {

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
