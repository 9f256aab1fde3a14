// Programmatic dependent launch: the GPU launches a kernel while the kernel before it on the stream
// still runs; the new kernel's blocks then wait on the GPU. That hides about 1.5 us of launch
// latency on an H200. Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and
// Synchronization".
#pragma once

#include <cstddef>

#include "core/cuda/check.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

/// Waits until the kernels before this one on its stream are complete and their writes are visible.
/// Every thread of a kernel that launch_dependent() launches calls it before it touches memory.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Enqueues `kernel`, which starts with wait_for_previous_kernel(), as a dependent launch on
/// compute capability 9.0 and as a normal one elsewhere: newer GPUs run the code for 8.0, which
/// does not wait. The caller checks the launch with TRIREME_CUDA_LAUNCHED.
template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                      std::size_t shared_bytes, const Context& context,
                      const Arguments&... arguments) {
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = &dependent;
  config.numAttrs = context.capability == 90 ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace trireme::kernels::cuda
