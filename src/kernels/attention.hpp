// Self-attention, causal or full, and which of its probabilities dropout keeps.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/norms.hpp"

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

// ---- dropout of probabilities, by the same rule on both backends

/// Dropout of attention probabilities is keyed by the logical element as DropoutStream says, with
/// 16 bits an element and seven rounds of Philox, for its masks are the largest: element e is
/// dropped when bits 16 (e % 8) on of the four words of block e / 8 are below round(probability *
/// 2^16). Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC
/// 2011), where Philox4x32-7 is the fastest that passes BigCrush.
struct AttentionMask {
  DropoutStream stream;         ///< of a sample
  std::uint32_t threshold = 0;  ///< below 2^16

  /// The words of elements 8 * block .. 8 * block + 7; block below 2^48.
  TRIREME_HOST_DEVICE Philox4 words(std::uint64_t block) const {
    Philox4 counter{static_cast<std::uint32_t>(block),
                    static_cast<std::uint32_t>((block >> 32) & 0xFFFF) |
                        static_cast<std::uint32_t>((stream.sample >> 32) & 0xFFFF) << 16,
                    static_cast<std::uint32_t>(stream.sample),
                    stream.layer << 2 | static_cast<std::uint32_t>(stream.site)};
    std::uint32_t k0 = static_cast<std::uint32_t>(stream.seed);
    std::uint32_t k1 = static_cast<std::uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 7; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.x;
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.z;
      counter = {
          static_cast<std::uint32_t>(b >> 32) ^ counter.y ^ k0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ counter.w ^ k1, static_cast<std::uint32_t>(a)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return counter;
  }

  /// The bits of element `i` of a block, of which words[i / 2] is the word.
  TRIREME_HOST_DEVICE static std::uint32_t bits(std::uint32_t word, std::uint64_t i) {
    return word >> (i % 2 * 16) & 0xFFFF;
  }
};

/// The threshold for `probability`; what remains is scaled by attention_kept().
inline std::uint32_t attention_threshold(double probability) {
  const double scaled = probability * 65536.0 + 0.5;
  return scaled >= 65535.0 ? 65535u : static_cast<std::uint32_t>(scaled);
}

/// What kept probabilities are multiplied by: 1 / (1 - p) of the p that the threshold gives.
inline double attention_kept(std::uint32_t threshold) { return 65536.0 / (65536.0 - threshold); }

}  // namespace trireme::kernels
