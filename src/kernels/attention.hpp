// Self-attention, causal or full; which of its probabilities dropout keeps; and what is done to
// queries and keys before it.
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
/// Raises out's amax (see Amax).
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

  static constexpr int kRounds = 7;
  /// What the rounds XOR into two words of the counter, made of the seed.
  struct RoundKeys {
    std::uint32_t x[kRounds], z[kRounds];
  };
  TRIREME_HOST_DEVICE RoundKeys round_keys() const {
    RoundKeys keys;
    std::uint32_t x = static_cast<std::uint32_t>(stream.seed);
    std::uint32_t z = static_cast<std::uint32_t>(stream.seed >> 32);
    for (int round = 0; round < kRounds; ++round) {
      keys.x[round] = x;
      keys.z[round] = z;
      x += 0x9E3779B9u;
      z += 0xBB67AE85u;
    }
    return keys;
  }

  /// The words of elements 8 * block .. 8 * block + 7, with round_keys(); block below 2^48.
  TRIREME_HOST_DEVICE Philox4 words(std::uint64_t block, const RoundKeys& keys) const {
    Philox4 counter{static_cast<std::uint32_t>(block),
                    static_cast<std::uint32_t>(block >> 32) +
                        (static_cast<std::uint32_t>(stream.sample >> 32) << 16),
                    static_cast<std::uint32_t>(stream.sample),
                    stream.layer << 2 | static_cast<std::uint32_t>(stream.site)};
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.x;
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.z;
      counter = {static_cast<std::uint32_t>(b >> 32) ^ counter.y ^ keys.x[round],
                 static_cast<std::uint32_t>(b),
                 static_cast<std::uint32_t>(a >> 32) ^ counter.w ^ keys.z[round],
                 static_cast<std::uint32_t>(a)};
    }
    return counter;
  }
  TRIREME_HOST_DEVICE Philox4 words(std::uint64_t block) const {
    return words(block, round_keys());
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

// ---- queries and keys before attention: their norms, then their rotation by position

/// Rotates each head x [d] of q and k, in place: with c and s the two halves of row `position` of
/// `table` and i < d/2, x_i becomes x_i c_i - x_(i+d/2) s_i and x_(i+d/2) becomes x_(i+d/2) c_i +
/// x_i s_i (the "rotate_half" of Hugging Face's files). `inverse` negates s: the backward pass, on
/// dqkv. qkv [s, b, (heads + 2 kv_heads) * d] as in AttentionForward; v is left alone. table
/// [positions, d] of the accumulation type: cosines, then sines. The token of row t of the sequence
/// is at first_position + t, or at positions[t * b + j] where `positions` [s, b] int32 (in the
/// backend's memory) is given. Computed in the accumulation type and rounded once. Source: Su et
/// al., "RoFormer" (2021), section 3.
struct Rotary {
  Tensor qkv;
  Tensor table;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t first_position = 0;
  const std::int32_t* positions = nullptr;
  bool inverse = false;
};

/// Replaces q and k by their RMS norms, x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), in
/// place, and keeps what the backward pass reads: `kept` [s, b, (heads + kv_heads) * d] gets q and
/// k as they were. qkv as in Rotary; all statistics [T, ...] of the accumulation type, T = s b.
/// * Each head (`width` 0): q_weight, k_weight [d]; rstd [T, heads + kv_heads] is written.
/// * All heads of a token together: `width` is the number of q's elements of all tensor ranks, of
///   which heads * d are here, and k's is in proportion; q_weight [heads * d], k_weight [kv_heads *
///   d]; sums [T, 2] has the sums of squares of q and k over all tensor ranks, from QkNormSums;
///   rstd [T, 2] is written.
struct QkNormForward {
  Tensor qkv;
  Tensor kept;
  Tensor q_weight;
  Tensor k_weight;
  Tensor rstd;
  Tensor sums;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t width = 0;
  double eps = 1e-5;
};

/// Turns the gradients of normalized q and k in dqkv into those of `kept`, in place, and adds
/// dq_weight and dk_weight, of the accumulation type and of the weights' sizes. With n = kept *
/// rstd and g = dy * weight: dx = rstd (g - n mean(g n)), dweight = sum of dy n. In QkNormForward's
/// second case sums [T, 2] has the sums of g n over all tensor ranks. The order of all sums is
/// fixed.
struct QkNormBackward {
  Tensor dqkv;
  Tensor kept;
  Tensor q_weight;
  Tensor k_weight;
  Tensor rstd;
  Tensor sums;
  Tensor dq_weight;
  Tensor dk_weight;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t width = 0;
};

/// Writes sums [T, 2] over this rank's q and k of each token: without `kept` the sums of squares of
/// qkv; with it, those of dy * weight * kept * rstd, where qkv holds the gradients dy. For a norm
/// of all heads together: the weights are [heads * d] and [kv_heads * d], rstd [T, 2].
struct QkNormSums {
  Tensor qkv;
  Tensor sums;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  Tensor kept = {};
  Tensor q_weight = {};
  Tensor k_weight = {};
  Tensor rstd = {};
};

namespace host {
void rotary(const Rotary& args);
void qk_norm_sums(const QkNormSums& args);
void qk_norm_forward(const QkNormForward& args);
void qk_norm_backward(const QkNormBackward& args);
}  // namespace host

namespace cuda {
void rotary(const Rotary& args, const Context& context);
void qk_norm_sums(const QkNormSums& args, const Context& context);
void qk_norm_forward(const QkNormForward& args, const Context& context);
void qk_norm_backward(const QkNormBackward& args, const Context& context);
}  // namespace cuda

}  // namespace trireme::kernels
