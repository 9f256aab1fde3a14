// Launches of the decoding kernels: on Hopper each may start while the one before it ends
// (programmatic dependent launch), so that it reads weights early. A chain of such kernels is
// correct because each of them waits before it reads or writes what others do.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "core/cuda/check.hpp"
#include "core/error.hpp"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

/// Lets the next kernel of the stream start, once all blocks of this one have called it.
__device__ __forceinline__ void allow_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Enqueues `kernel`, with `shared_bytes` of dynamic shared memory, in clusters of `cluster` blocks
/// along x, 1 unless on Hopper; all its blocks call wait_for_previous_kernel().
template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared_bytes,
                  const Context& context, unsigned cluster, const Arguments&... arguments) {
  TRIREME_CHECK(cluster == 1 || context.is_hopper(), "clusters on compute capability {}",
                context.capability);
  // Static and dynamic shared memory of more than 48 KiB together have to be asked for.
  if (shared_bytes > 0)
    TRIREME_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)));
  // Kernels of different shares of shared memory are not on an SM at the same time.
  TRIREME_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (context.is_hopper()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  const cudaLaunchConfig_t config{.gridDim = blocks,
                                  .blockDim = dim3(static_cast<unsigned>(threads)),
                                  .dynamicSmemBytes = shared_bytes,
                                  .stream = context.stream,
                                  .attrs = attributes,
                                  .numAttrs = count};
  TRIREME_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
}

/// Calls function(integral_constant<int, v>{}) with the first of kValues that is not below `value`.
template <int... kValues, typename Function>
void dispatch_at_least(int value, std::integer_sequence<int, kValues...>,
                       const Function& function) {
  ((value <= kValues && (function(std::integral_constant<int, kValues>{}), true)) || ...);
}

}  // namespace trireme::kernels::cuda
