// Launches of the attention kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

/// Half types on tensor cores, heads padded to D: 32, 64, 80, 96, 112, 128 or 256. The backward
/// pass wants the row statistics, and ticket and turns zeroed, in the workspace. Instantiated in
/// heads/, in several files that compile side by side.
template <int D>
void launch_forward(const AttentionForward& args, const Context& context);
template <int D>
void launch_backward(const AttentionBackward& args, const Context& context);

/// The forward pass on compute capability 9.0, heads padded to D: 64, 80, 96, 112 or 128, for
/// tensors that fits_boxes; with dropout for s a multiple of 8. Instantiated in hopper/forward.cu.
template <int D>
void launch_box_forward(const AttentionForward& args, const Context& context);

/// The backward pass on compute capability 9.0, heads padded to D: 64, 80, 96 or 128, for
/// tensors that fits_boxes; with dropout for s a multiple of 8. Wants what launch_backward wants.
/// Instantiated in hopper/backward.cu.
template <int D>
void launch_box_backward(const AttentionBackward& args, const Context& context);

/// Writes the statistics of each row, from lse, out and dout, to the workspace.
void launch_statistics(const AttentionBackward& args, const Context& context);

/// fp32 on CUDA cores. The backward pass wants the row statistics in the workspace.
void launch_plain_forward(const AttentionForward& args, const Context& context);
void launch_plain_backward(const AttentionBackward& args, const Context& context);

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
  TRIREME_CHECK(dtype == DType::bf16 || dtype == DType::f16, "GEMMs on tensor cores are not in {}",
                name_of(dtype));
  if (dtype == DType::bf16) {
    function(__nv_bfloat16{});
  } else {
    function(__half{});
  }
}

}  // namespace trireme::kernels::cuda
