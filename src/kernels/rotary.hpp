// What is done to queries and keys before attention: their norms, then their rotation by position.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

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
