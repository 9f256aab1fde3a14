// Self-attention, causal or full.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/dropout.hpp"

namespace trireme::kernels {

namespace cuda {
/// The maximum head dimension that the kernels for GPUs take.
inline constexpr int kMaxHead = 256;
}  // namespace cuda

/// Writes out = dropout(softmax(mask(q k^T / sqrt(d)))) v for each sample and local head, and the
/// log-sum-exp of each row, from which the backward pass recomputes the probabilities. The mask
/// lets a query attend to keys up to its own position when `causal`, to all otherwise; and where
/// `document_start` [b, s] int32 (in the backend's memory) is given, only to keys from
/// document_start[query] <= query on, which must not decrease from query to query of a sample.
/// Where `lengths` [b] int32 (in the backend's memory) is given, the tokens of sample j from
/// lengths[j] on are padding, which no query attends to and for which nothing is computed: their
/// out, lse and dqkv are 0; their qkv and dout have to be finite. Any sequence length and head
/// dimension d (on CUDA up to kMaxHead). qkv [s, b, (heads + 2 kv_heads) * d] (q of all local
/// heads, then k, then v), out [s, b, heads * d], lse [b, heads, s] of the accumulation type. With
/// fewer kv_heads, which divides heads, query head i reads key and value head i / (heads /
/// kv_heads), and their gradients are sums over those query heads; 0 stands for `heads`.
/// `first_head` is the global index of local head 0: dropout is keyed by the global query head.
/// Sources: Dao, "FlashAttention-2" (2023), section 3 (what is saved and recomputed); Ainslie et
/// al., "GQA" (2023).
struct AttentionForward {
  Tensor qkv;
  Tensor out;
  Tensor lse;
  std::int64_t heads = 1;
  std::int64_t first_head = 0;
  Dropout dropout;
  bool causal = true;
  const std::int32_t* document_start = nullptr;
  const std::int32_t* lengths = nullptr;
  std::int64_t kv_heads = 0;
};

/// Writes dqkv, the gradient of qkv. Shapes as in AttentionForward.
struct AttentionBackward {
  Tensor dout;
  Tensor qkv;
  Tensor out;
  Tensor lse;
  Tensor dqkv;
  std::int64_t heads = 1;
  std::int64_t first_head = 0;
  Dropout dropout;
  bool causal = true;
  const std::int32_t* document_start = nullptr;
  const std::int32_t* lengths = nullptr;
  std::int64_t kv_heads = 0;
};

namespace host {
void attention_forward(const AttentionForward& args);
void attention_backward(const AttentionBackward& args);
}  // namespace host

namespace cuda {
void attention_forward(const AttentionForward& args, const Context& context);
void attention_backward(const AttentionBackward& args, const Context& context);
}  // namespace cuda
}  // namespace trireme::kernels
