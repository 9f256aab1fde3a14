// What the attention kernels are given.
#pragma once

#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/dropout.cuh"
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/common/math.cuh"
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

}  // namespace trireme::kernels::cuda
