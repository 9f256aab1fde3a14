// Self-attention over the heads of this tensor rank.
#pragma once

#include <span>
#include <vector>

#include "model/context.hpp"
#include "model/layers/linear.hpp"
#include "model/spec.hpp"

namespace trireme::model {

/// Where the gradients of the outputs of a sublayer's two linears are kept until
/// backward_weights(): they take no separate memory, see TransformerBlock.
struct DeferredGradients {
  Tensor first;   ///< of the column-parallel linear: like its output
  Tensor second;  ///< of the row-parallel linear: [S, b, h]
};

/// `tokens` new positions of one sequence over `past` cached ones.
struct CachedChunk {
  std::int64_t tokens = 1;
  std::int64_t past = 0;

  /// Whether its attention goes through the kernels of training, which read no cache.
  bool fresh() const {
    constexpr std::int64_t kFewTokens = 8;
    return past == 0 && tokens > kFewTokens;
  }
};

/// The new tokens of a pass over a KV cache, [T]: the chunks follow each other. Without chunks each
/// row is the one new token of its sequence: nothing but device memory then says which sequences
/// and positions these are, so that a captured pass can be replayed.
struct CachedTokens {
  kernels::KeyValueCache cache;  ///< of the layer, with this rank's heads: keys are rotated
  kernels::CacheRows rows;
  std::span<const CachedChunk> chunks;
  /// [T] int32 in the backend's memory: the first row that a row of a fresh chunk attends to,
  /// counted from the first of the fresh chunks that follow each other. Null where that is always
  /// 0.
  const std::int32_t* fresh_starts = nullptr;
};

/// The cosines and sines of rotary positions, kernels::Rotary::table, row-major: computed in fp64.
/// positions * head_dim values.
std::vector<double> rotary_table(const RotarySpec& spec, std::int64_t positions,
                                 std::int64_t head_dim);
/// That table of `positions` rows for the model's rotated heads, from `arena`; empty in a model
/// without them.
Tensor take_rotary_table(Arena& arena, const ModelSpec& spec, const LayerSizes& sizes,
                         std::int64_t positions);
/// Fills what take_rotary_table() took.
void write_rotary_table(device::Backend& backend, const ModelSpec& spec, const Tensor& table);

/// q, k, v by a column-parallel linear, their norms and rotation, attention, a row-parallel output
/// projection. Letters beyond context.hpp's: q = heads head_dim, k = kv_heads head_dim.
class Attention {
 public:
  /// What a forward pass keeps for the backward pass. All sequence-major.
  struct Activations {
    Tensor qkv;  ///< [s, b, (q + 2 k) / t]: normalized and rotated
    /// With QkNorm: q and k before it [s, b, (q + k) / t], and kernels::QkNormForward's rstd and
    /// sums.
    Tensor qk_in, qk_rstd, qk_sums;
    Tensor lse;       ///< [b, heads / t, s]
    Tensor attn_out;  ///< [s, b, q / t], the heads' outputs
    Fp8Input qkv_in, projection_in;
  };

  Attention(const AttentionSpec& spec, const LayerPlace& place);

  void declare(ParameterTableBuilder& table) const;
  void bind(const ParameterStore& parameters);
  Activations take(Arena& arena, const LayerSizes& sizes) const;
  std::int64_t local_heads(const LayerSizes& sizes) const {
    return spec_.heads / sizes.tensor_ranks;
  }
  std::int64_t local_kv_heads(const LayerSizes& sizes) const {
    return spec_.local_kv_heads(sizes.tensor_ranks);
  }
  std::int64_t head_dim() const { return spec_.head_dim; }
  /// Elements of LayerWorkspace::inner and heads for each token.
  std::int64_t inner_width(const LayerSizes& sizes) const { return qkv_.local_out(sizes); }
  std::int64_t heads_width(const LayerSizes& sizes) const {
    return local_heads(sizes) * spec_.head_dim;
  }
  const ColumnParallelLinear& qkv() const { return qkv_; }
  /// The output projection, whose bias the residual sum adds.
  const RowParallelLinear& projection() const { return projection_; }
  /// The linears that may be in FP8.
  std::vector<const Linear*> fp8_linears() const { return {&qkv_, &projection_}; }
  /// Calls Linear::take_fp8_weight() of these.
  void take_fp8_weights(Arena& arena, const LayerSizes& sizes);

  /// Writes this rank's term of the output, y [s, b, h], from x [T, h], of which each rank has
  /// written sp_shard(). Collective over the tensor group.
  void forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
               const Activations& saved, const Tensor& y) const;
  /// forward() of new tokens x [T, h] without dropout. `saved` is scratch here.
  void forward_cached(const LayerContext& context, const Tensor& x, const Activations& saved,
                      const CachedTokens& tokens, const Tensor& y) const;
  /// The whole sublayer for at most kMaxDecodeRows new tokens on one tensor rank: adds the output
  /// for norm(stream) to `stream` [T, h].
  void decode(const LayerContext& context, const kernels::DecodeNorm& norm,
              const Activations& saved, const CachedTokens& tokens, const Tensor& stream) const;

  /// Writes the gradient of x, whose sum over the tensor ranks is still to come, to
  /// workspace.hidden from dy [S, b, h], that of the output, which may lie there. Adds the
  /// projection's gradients, without that of W where `deferred`, the projection's bias where
  /// `add_bias`. What `meanwhile` enqueues, which may not use workspace.hidden, overlaps with the
  /// gather of dy where copy engines do that. Returns the gradient of qkv, in workspace.inner.
  /// Collective.
  Tensor backward(const LayerContext& context, const LayerWorkspace& workspace,
                  const PassInfo& pass, const Tensor& dy, const Activations& saved, bool add_bias,
                  const DeferredGradients* deferred, const std::function<void()>& meanwhile) const;
  /// Adds the gradients of the qkv linear from the complete x [T, h] and what backward() returned;
  /// with `deferred` that of W is left to backward_weights().
  void qkv_gradient(const LayerContext& context, const Tensor& x, const Tensor& dqkv,
                    const Activations& saved, const DeferredGradients* deferred) const;
  /// Adds the gradients of the weight matrices that were left. Collective.
  void backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                        const Tensor& x, const Activations& saved,
                        const DeferredGradients& deferred) const;

 private:
  /// From saved.qkv to saved.attn_out.
  void attend_cached(const LayerContext& context, const Activations& saved,
                     const CachedTokens& tokens) const;
  /// Normalizes q and k of saved.qkv in place. Collective if QkNorm::width.
  void normalize(const LayerContext& context, const Activations& saved) const;
  /// Rotates q and k of `qkv` in place, or with `inverse` their gradients back.
  void rotate(const LayerContext& context, const Tensor& qkv, std::int64_t first_position,
              const std::int32_t* positions, bool inverse) const;
  /// Multiplies q of `qkv`, or its gradient, by AttentionSpec::query_scale in place.
  void scale_queries(const LayerContext& context, const Tensor& qkv) const;
  /// Turns the gradient of rotated, normalized q and k into that of the linear's output, in place,
  /// and adds those of the norms' weights. Collective if QkNorm::width.
  void normalize_backward(const LayerContext& context, const Activations& saved,
                          const Tensor& dqkv) const;
  /// Elements of q over which QkNorm::width takes its mean; 0 for QkNorm::head.
  std::int64_t norm_width() const {
    return spec_.qk_norm == QkNorm::width ? spec_.heads * spec_.head_dim : 0;
  }

  AttentionSpec spec_;
  std::string name_;
  int layer_;
  ColumnParallelLinear qkv_;
  RowParallelLinear projection_;
  WeightGradient q_norm_, k_norm_;
};

}  // namespace trireme::model
