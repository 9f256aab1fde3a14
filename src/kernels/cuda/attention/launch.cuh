// Launching the attention kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/types.cuh"

namespace trireme::kernels::cuda {

/// Queues `kernel` with `shared_bytes` of dynamic shared memory, which may be more than the 48 KB
/// that need no asking.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), std::int64_t blocks, int threads, int shared_bytes,
            const Context& context, const Arguments&... arguments) {
  TRIREME_CHECK(shared_bytes <= context.shared_memory_bytes,
                "attention: a block needs {} bytes of shared memory, the GPU has {}", shared_bytes,
                context.shared_memory_bytes);
  if (shared_bytes > 48 << 10) {
    TRIREME_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, context.stream>>>(arguments...);
  TRIREME_CUDA_LAUNCHED(attention);
}

/// Calls function(std::bool_constant<value>()).
template <typename Function>
void dispatch_flag(bool value, Function&& function) {
  if (value) {
    function(std::true_type());
  } else {
    function(std::false_type());
  }
}

/// Calls function(T{}) with the CUDA type of `dtype`, a 16-bit type.
template <typename Function>
void dispatch_half(DType dtype, Function&& function) {
  TRIREME_CHECK(dtype == DType::bf16 || dtype == DType::f16,
                "products on tensor cores are not in {}", name_of(dtype));
  if (dtype == DType::bf16) {
    function(__nv_bfloat16{});
  } else {
    function(__half{});
  }
}

}  // namespace trireme::kernels::cuda
