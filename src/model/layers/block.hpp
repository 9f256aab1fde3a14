// One transformer block, sharded over tensor ranks: forward and backward.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/layers/attention.hpp"
#include "model/layers/mlp.hpp"
#include "model/layers/norm.hpp"

namespace trireme::model {

/// Activations of a block that the backward pass reads. Post-norm: norm1 follows attention, and its
/// output is the residual stream and the input of the MLP; norm2 follows the MLP, and its output is
/// the block's. With norms of the sublayers' outputs (NormPlacement::output) the same tensors are
/// the norms' inputs and the residual stream, see there.
struct BlockActivations {
  /// [T, h], not pre-norm: a copy of the input, whose buffer may be received into again before
  /// backward_weights().
  Tensor attention_in;
  NormStatistics norm1;
  Tensor norm1_out;  ///< [T, h]; output norms: the residual sum after attention
  Attention::Activations attention;
  Tensor residual_mid;  ///< [S, b, h], the residual sum after attention; output norms: its output
  NormStatistics norm2;
  Tensor norm2_out;  ///< [T, h]; pre-norm only
  Mlp::Activations mlp;
  /// [S, b, h], not pre-norm: the residual sum after the MLP; output norms: its output.
  Tensor residual_out;

  /// Whether norm1_out and norm2_out stay what the forward pass wrote, or the backward pass does
  /// not read them; if not, it recomputes them. The other cheap output, gelu_out, is not
  /// recomputed: see kernels::LinearGelu, which need not make it from fc1_out as it is stored.
  bool keeps_norms = true;
};

/// The deferred gradients of a block's two sublayers. With the inputs of their linears, which a
/// forward pass saves, they give the gradients of the weight matrices.
struct BlockGradients {
  DeferredGradients attention, mlp;

  /// Places over activations that no pass reads any more once the backward pass has come to them:
  /// they take no memory. `output` is the block's. Not for recomputed blocks.
  static BlockGradients over(const BlockActivations& saved, const Tensor& output) {
    return {{saved.attention.qkv, saved.residual_mid},
            {saved.mlp.fc1_out, saved.residual_out ? saved.residual_out : output}};
  }
};

class TransformerBlock;

/// How a pre-norm block's forward pass is joined to those of its neighbours: one kernel adds the
/// residual that ends a block and computes the first norm of the next.
struct BlockJoints {
  bool has_norm1 = false;                  ///< norm1 of this block was computed by the block before
  const TransformerBlock* next = nullptr;  ///< whose norm1 this block computes; null: none
  const BlockActivations* next_saved = nullptr;
};

/// Block `layer` of a model; its weights live in a ParameterStore.
class TransformerBlock {
 public:
  TransformerBlock(const ModelSpec& spec, int layer);

  void declare(ParameterTableBuilder& table) const;
  /// `parameters` must hold the block's and outlive this.
  void bind(const ParameterStore& parameters);

  /// The activations of one micro-batch, from `arena`. With `norm` [T, h], norm1_out and norm2_out
  /// are that tensor, which other blocks use as well; all but pre-norm blocks throw DeckError. A
  /// block whose reads_norms() is false needs no others.
  BlockActivations take(Arena& arena, const LayerSizes& sizes,
                        const std::optional<Tensor>& norm = std::nullopt) const;
  /// Whether backward passes read norm1_out and norm2_out: not if all linears are in FP8, which
  /// keep their inputs themselves.
  bool reads_norms(const LayerSizes& sizes) const;
  /// Such a tensor.
  static Tensor take_norm(Arena& arena, const LayerSizes& sizes);

  const Attention& attention() const { return attention_; }
  /// The linears that may be in FP8.
  std::vector<const Linear*> fp8_linears() const;
  /// Takes the FP8 copies of their weights from `arena`, which cast_weights() makes: passes read
  /// them instead of the weights. cast_weights() is collective over the tensor group.
  void take_fp8_weights(Arena& arena, const LayerSizes& sizes);
  void cast_weights(const LayerContext& context) const;
  /// Elements of LayerWorkspace::inner for each token.
  std::int64_t inner_width(const LayerSizes& sizes) const;

  /// Writes output [S, b, h] and `saved` from input [S, b, h]; without an output it writes `saved`
  /// alone, what backward() needs, and leaves out the last GEMM. `joints` say what other blocks'
  /// passes do of it, and need joins(). Collective over the tensor group.
  void forward(const LayerContext& context, const LayerWorkspace& workspace, const PassInfo& pass,
               const Tensor& input, const BlockActivations& saved, const Tensor& output,
               const BlockJoints& joints = {}) const;
  /// Whether forward() can compute the first norm of `next`, which reads its output.
  bool joins(const TransformerBlock& next) const { return pre_norm() && next.pre_norm(); }

  /// Turns `gradient` [S, b, h], that of the output, into that of the input, in place, and adds the
  /// weight gradients: under sequence parallelism, those of Parameter::sequence_parallel are of
  /// this rank's positions alone. With `deferred` those of the weight matrices are left to
  /// backward_weights(), and what that needs is written there. `gradient` may have an amax, and
  /// with `input_amax`, gradient_amax() of the block before, that of the result is raised.
  /// Collective over the tensor group.
  void backward(const LayerContext& context, const LayerWorkspace& workspace, const PassInfo& pass,
                const Tensor& input, const BlockActivations& saved, const Tensor& gradient,
                const BlockGradients* deferred = nullptr, float* input_amax = nullptr) const;
  /// Where amax of `gradient`, that of the output, is of use to backward(), of which the block
  /// after it raises it if this one joins() that; null: nowhere.
  float* gradient_amax(const LayerContext& context, const PassInfo& pass,
                       const Tensor& gradient) const;

  /// Adds the gradients of the weight matrices, after a backward() that deferred them. Collective
  /// over the tensor group.
  void backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                        const BlockActivations& saved, const BlockGradients& deferred) const;

  /// forward() of new tokens, whose stream [T, 1, h] is changed in place, without dropout; `saved`
  /// is scratch here. Collective over the tensor group.
  void forward_cached(const LayerContext& context, const LayerWorkspace& workspace,
                      const BlockActivations& saved, const Tensor& stream,
                      const CachedTokens& tokens) const;

 private:
  bool pre_norm() const { return placement_ == NormPlacement::pre; }
  bool output_norm() const { return placement_ == NormPlacement::output; }
  /// forward() with norms of the sublayers' outputs; attend() leaves this rank's term of the
  /// attention's output in workspace.hidden.
  template <typename Attend>
  void forward_output_norm(const LayerContext& context, const LayerWorkspace& workspace,
                           const PassInfo& pass, const Tensor& input, const BlockActivations& saved,
                           const Tensor& output, const Attend& attend) const;
  void backward_output_norm(const LayerContext& context, const LayerWorkspace& workspace,
                            const PassInfo& pass, const BlockActivations& saved,
                            const Tensor& gradient, const BlockGradients* deferred) const;
  /// forward() and the two halves of backward(), last first, with norms after the sublayers.
  void forward_post_norm(const LayerContext& context, const LayerWorkspace& workspace,
                         const PassInfo& pass, const Tensor& input, const BlockActivations& saved,
                         const Tensor& output) const;
  void mlp_backward_post_norm(const LayerContext& context, const LayerWorkspace& workspace,
                              const PassInfo& pass, const BlockActivations& saved,
                              const Tensor& gradient, const DeferredGradients* deferred) const;
  void attention_backward_post_norm(const LayerContext& context, const LayerWorkspace& workspace,
                                    const PassInfo& pass, const BlockActivations& saved,
                                    const Tensor& gradient,
                                    const DeferredGradients* deferred) const;
  /// From this rank's term of the attention's output, in workspace.hidden, to `output`.
  void finish_forward(const LayerContext& context, const LayerWorkspace& workspace,
                      const PassInfo& pass, const Tensor& input, const BlockActivations& saved,
                      const Tensor& output, const BlockJoints& joints) const;
  /// What adds the gradient that the MLP's backward pass left, for Attention::backward() to call
  /// while it gathers.
  std::function<void()> overlapped_fc2_gradient(const LayerContext& context,
                                                const LayerWorkspace& workspace,
                                                const BlockActivations& saved,
                                                const DeferredGradients* deferred) const;
  /// The two halves of backward(), last first.
  void mlp_backward(const LayerContext& context, const LayerWorkspace& workspace,
                    const PassInfo& pass, const BlockActivations& saved, const Tensor& gradient,
                    const DeferredGradients* deferred) const;
  void attention_backward(const LayerContext& context, const LayerWorkspace& workspace,
                          const PassInfo& pass, const Tensor& input, const BlockActivations& saved,
                          const Tensor& gradient, const DeferredGradients* deferred,
                          float* input_amax) const;
  /// `gradient`, that of residual_mid, with the place for amax if it is that of the projection's
  /// output, too.
  Tensor attention_gradient(const LayerContext& context, const PassInfo& pass,
                            const Tensor& gradient) const;

  NormPlacement placement_;
  std::unique_ptr<Norm> norm1_, norm2_;
  Attention attention_;
  std::unique_ptr<Mlp> mlp_;
  ResidualAdd attention_residual_, mlp_residual_;
};

/// The scratch memory that `blocks` share, from `arena`.
LayerWorkspace take_workspace(Arena& arena, const LayerSizes& sizes,
                              const std::vector<const TransformerBlock*>& blocks);

}  // namespace trireme::model
