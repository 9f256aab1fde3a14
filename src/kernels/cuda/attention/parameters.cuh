// What the attention kernels are given, and how they are launched.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/dropout.cuh"
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {

/// AttentionForward as its kernels see it.
template <typename T>
struct AttentionForwardParameters {
  const T* qkv;
  T* out;
  float* lse;
  AttentionSizes sizes;
  float scale;  ///< 1 / sqrt(d)
  AttentionDropout dropout;
  const std::int32_t* document_start;  ///< [b, s], or null
};

/// What the backward pass reads of a row in addition to q and dout.
struct alignas(8) RowStatistics {
  float lse2;   ///< log-sum-exp in base 2
  float delta;  ///< sum of out * dout, which is that of P * dP
};

/// Where the kernels for 16-bit types write dK and dV of each query head, from position to position
/// `stride` elements: to dqkv, or, where query heads share keys and values, to scratch memory [s,
/// b, 2 heads, d], of which sum_groups makes dqkv.
template <typename T>
struct KeyGradients {
  T* data;
  int first_head;  ///< the head that dK of head 0 is, of `all_heads` a sample
  int all_heads;
  std::int64_t stride;

  __device__ T* rows(const AttentionSizes& sizes, int task, int part) const {
    const std::int64_t head = first_head + (part - 1) * sizes.heads + task % sizes.heads;
    return data + (std::int64_t{task} / sizes.heads * all_heads + head) * sizes.d;
  }
};

/// AttentionBackward as its kernels see it.
template <typename T>
struct AttentionBackwardParameters {
  const T* dout;
  const T* qkv;
  T* dqkv;
  KeyGradients<T> key_gradients;
  const RowStatistics* statistics;  ///< [b, heads, s]
  unsigned* ticket;                 ///< how many blocks have begun
  unsigned* turns;                  ///< [b * heads, tiles]: blocks that have added to the tile
  float* partial_dq;                ///< [b * heads, tiles, kQueries * D]
  AttentionSizes sizes;
  float scale;
  AttentionDropout dropout;
  const std::int32_t* document_start;  ///< [b, s], or null
};

/// The sizes of AttentionForward or AttentionBackward, whose operands lie as `aligned` says.
template <typename Args>
AttentionSizes attention_sizes(const Args& args, bool aligned) {
  const std::int64_t kv_heads = args.kv_heads > 0 ? args.kv_heads : args.heads;
  const std::int64_t d = args.qkv.shape[2] / (args.heads + 2 * kv_heads);
  return {.s = static_cast<int>(args.qkv.shape[0]),
          .b = static_cast<int>(args.qkv.shape[1]),
          .heads = static_cast<int>(args.heads),
          .kv_heads = static_cast<int>(kv_heads),
          .d = static_cast<int>(d),
          .access_bytes = !aligned     ? 2
                          : d % 8 == 0 ? 16
                          : d % 4 == 0 ? 8
                                       : 2,
          .causal = args.causal,
          .lengths = args.lengths};
}

inline AttentionDropout attention_dropout(const Dropout& dropout, std::int64_t first_head) {
  const std::uint32_t threshold = attention_threshold(dropout.probability);
  return {.mask = {.stream = {.seed = dropout.seed,
                              .sample = dropout.first_sample,
                              .layer = dropout.layer,
                              .site = dropout.site},
                   .threshold = threshold},
          .first_head = first_head,
          .kept = static_cast<float>(attention_kept(threshold))};
}

template <typename T>
AttentionForwardParameters<T> forward_parameters(const AttentionForward& args) {
  const bool aligned = aligned16(args.qkv.data) && aligned16(args.out.data);
  const AttentionSizes sizes = attention_sizes(args, aligned);
  return {.qkv = args.qkv.as<T>(),
          .out = args.out.as<T>(),
          .lse = args.lse.as<float>(),
          .sizes = sizes,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.d))),
          .dropout = attention_dropout(args.dropout, args.first_head),
          .document_start = args.document_start};
}

/// Takes the scratch memory apart as attention_backward_layout says.
template <typename T>
AttentionBackwardParameters<T> backward_parameters(const AttentionBackward& args,
                                                   const Context& context) {
  const bool aligned =
      aligned16(args.qkv.data) && aligned16(args.dout.data) && aligned16(args.dqkv.data);
  const AttentionSizes sizes = attention_sizes(args, aligned);
  const AttentionBackwardLayout layout = attention_backward_layout(
      args.qkv.dtype, sizes.s, sizes.b, sizes.heads, sizes.d, sizes.kv_heads);
  std::byte* const scratch = context.workspace;
  const bool grouped = sizes.kv_heads < sizes.heads;
  const int gradient_heads = grouped ? 2 * sizes.heads : sizes.all_heads();
  unsigned* const ticket = reinterpret_cast<unsigned*>(scratch + layout.turns);
  return {.dout = args.dout.as<T>(),
          .qkv = args.qkv.as<T>(),
          .dqkv = args.dqkv.as<T>(),
          .key_gradients = {.data = grouped ? reinterpret_cast<T*>(scratch + layout.key_gradients)
                                            : args.dqkv.as<T>(),
                            .first_head = grouped ? 0 : sizes.heads,
                            .all_heads = gradient_heads,
                            .stride = std::int64_t{sizes.b} * gradient_heads * sizes.d},
          .statistics = reinterpret_cast<const RowStatistics*>(scratch + layout.statistics),
          .ticket = ticket,
          .turns = ticket + 1,
          .partial_dq = reinterpret_cast<float*>(scratch + layout.partial_dq),
          .sizes = sizes,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.d))),
          .dropout = attention_dropout(args.dropout, args.first_head),
          .document_start = args.document_start};
}

// ---- launches

/// Half types on tensor cores, heads padded to D: 32, 64, 80, 96, 112, 128 or 256. The backward
/// pass wants the row statistics, and ticket and turns zeroed, in the workspace. Each D is
/// instantiated in a file of its own, head_<D>.cu.
template <int D>
void launch_forward(const AttentionForward& args, const Context& context);
template <int D>
void launch_backward(const AttentionBackward& args, const Context& context);

/// The forward pass on compute capability 9.0, heads padded to D: 64, 80, 96, 112 or 128, for
/// tensors that fits_boxes; with dropout for s a multiple of 8. Instantiated in hopper/forward.cu.
template <int D>
void launch_box_forward(const AttentionForward& args, const Context& context);

/// The backward pass on compute capability 9.0, heads padded to D: 64 or 128, for tensors
/// that fits_boxes; with dropout for s a multiple of 8. Wants what launch_backward wants.
/// Instantiated in hopper/backward_<D>.cu.
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
