// The feed-forward sublayer.
#pragma once

#include <memory>
#include <vector>

#include "model/context.hpp"
#include "model/layers/attention.hpp"
#include "model/layers/linear.hpp"
#include "model/spec.hpp"

namespace trireme::model {

/// A column-parallel linear, an activation function, a row-parallel linear. A new kind implements
/// this and is named by a row of mlp_kinds(). Letters beyond context.hpp's: n outputs of the first
/// linear, f inputs of the second.
class Mlp {
 public:
  /// What a forward pass keeps for the backward pass.
  struct Activations {
    Tensor fc1_out;  ///< [T, n / t], bias included
    /// [T, f / t], after the activation function; empty where the second linear is in FP8, which
    /// keeps its input itself.
    Tensor gelu_out;
    Fp8Input fc1_in, fc2_in;
  };

  virtual ~Mlp() = default;

  virtual void declare(ParameterTableBuilder& table) const = 0;
  /// `parameters` must hold the declared ones and outlive this.
  virtual void bind(const ParameterStore& parameters) = 0;
  virtual Activations take(Arena& arena, const LayerSizes& sizes) const = 0;
  /// Elements of LayerWorkspace::inner for each token.
  virtual std::int64_t inner_width(const LayerSizes& sizes) const = 0;
  /// The second linear, whose bias the residual sum adds.
  virtual const RowParallelLinear& output() const = 0;
  /// The linears that may be in FP8.
  virtual std::vector<const Linear*> fp8_linears() const { return {}; }
  /// Calls Linear::take_fp8_weight() of these.
  virtual void take_fp8_weights(Arena&, const LayerSizes&) {}
  /// As Linear has them: x of the first linear, and dy of the second, which the operations that
  /// write them leave amax of. A kind whose conversions to FP8 do not read it leaves it out.
  virtual Tensor with_input_amax(const LayerContext&, const Tensor& x) const { return x; }
  virtual Tensor with_gradient_amax(const LayerContext&, const Tensor& dy) const { return dy; }

  /// Writes this rank's term of the output, y [s, b, h], from x [T, h], of which each rank has
  /// written sp_shard(); without y it writes `saved` alone. workspace.inner is scratch. Collective
  /// over the tensor group.
  virtual void forward(const LayerContext& context, const LayerWorkspace& workspace,
                       const Tensor& x, const Activations& saved, const Tensor& y) const = 0;
  /// Whether decode() is there.
  virtual bool decodes() const { return false; }
  /// The whole sublayer for at most kMaxDecodeRows new tokens on one tensor rank: adds the output
  /// for norm(stream) to `stream` [T, h]. `saved` is scratch here.
  virtual void decode(const LayerContext&, const kernels::DecodeNorm&, const Activations&,
                      const Tensor&) const {
    throw InternalError("this MLP has no decode()");
  }
  /// Writes the gradient of x, whose sum over the tensor ranks is still to come, to
  /// workspace.hidden from dy [S, b, h], that of the output, which may lie in workspace.mlp_out.
  /// Adds all gradients but that of the first linear's W, which fc1_gradient() adds, that of the
  /// second's where fc2_gradient() does, and with `deferred` neither. Returns the gradient of
  /// fc1_out, in workspace.inner. Collective.
  virtual Tensor backward(const LayerContext& context, const LayerWorkspace& workspace,
                          const Tensor& dy, const Activations& saved,
                          const DeferredGradients* deferred) const = 0;
  /// Adds the gradient of the first linear's W from the complete x [T, h] and what backward()
  /// returned; with `deferred` that is left to backward_weights().
  virtual void fc1_gradient(const LayerContext& context, const Tensor& x, const Tensor& dfc1,
                            const Activations& saved, const DeferredGradients* deferred) const = 0;
  /// Adds the gradient of the second linear's W where backward() without `deferred` left it, as
  /// RowParallelLinear::backward_by_parts() does; reads what that wrote to workspace.mlp_out.
  virtual void fc2_gradient(const LayerContext&, const LayerWorkspace&, const Activations&) const {}
  /// Adds the gradients of the weight matrices that were left. Collective.
  virtual void backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                                const Tensor& x, const Activations& saved,
                                const DeferredGradients& deferred) const = 0;
};

using MlpFactory = std::unique_ptr<Mlp> (*)(const MlpSpec& spec, const LayerPlace& place);
/// The MLPs that a spec may name.
LayerKinds<MlpFactory>& mlp_kinds();
/// The MLP that `spec` names; throws InternalError for an unknown kind.
inline std::unique_ptr<Mlp> make_mlp(const MlpSpec& spec, const LayerPlace& place) {
  return mlp_kinds().find(spec.kind)(spec, place);
}

/// What kinds of two linears have in common: the linears. Theirs are the first one's row blocks,
/// the activation function and inner_width().
class TwoLinearMlp : public Mlp {
 public:
  void declare(ParameterTableBuilder& table) const override;
  void bind(const ParameterStore& parameters) override;
  Activations take(Arena& arena, const LayerSizes& sizes) const override;
  const RowParallelLinear& output() const override { return fc2_; }
  std::vector<const Linear*> fp8_linears() const override { return {&fc1_, &fc2_}; }
  void take_fp8_weights(Arena& arena, const LayerSizes& sizes) override;
  Tensor with_input_amax(const LayerContext& context, const Tensor& x) const override {
    return fc1_.with_input_amax(context, x);
  }
  Tensor with_gradient_amax(const LayerContext& context, const Tensor& dy) const override {
    return fc2_.with_gradient_amax(context, dy);
  }
  void fc1_gradient(const LayerContext& context, const Tensor& x, const Tensor& dfc1,
                    const Activations& saved, const DeferredGradients* deferred) const override;
  void backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                        const Tensor& x, const Activations& saved,
                        const DeferredGradients& deferred) const override;

 protected:
  TwoLinearMlp(LinearSpec fc1, LinearSpec fc2)
      : width_(fc2.in), fc1_(std::move(fc1)), fc2_(std::move(fc2)) {}
  std::int64_t local_width(const LayerSizes& sizes) const { return width_ / sizes.tensor_ranks; }
  /// Where the activation function's output goes, [T, f / t]: saved.gelu_out, or scratch.
  Tensor activated(const LayerContext& context, const LayerWorkspace& workspace,
                   const Activations& saved) const {
    if (saved.gelu_out) return saved.gelu_out;
    return front(workspace.inner, {context.tokens(), local_width(context)});
  }
  /// The input of fc2 for its weight gradient; in FP8, which reads saved.fc2_in, another tensor.
  static const Tensor& fc2_input(const Activations& saved) {
    return saved.gelu_out ? saved.gelu_out : saved.fc1_out;
  }
  /// decode() with this function.
  void decode_with(const LayerContext& context, const kernels::DecodeNorm& norm,
                   const Activations& saved, const Tensor& stream, kernels::Activation function,
                   bool gated) const;

  std::int64_t width_;  ///< f
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

/// y = (f(x Wg^T) * (x Wu^T)) W2^T without biases: SwiGLU and GeGLU. Wg and Wu are the row blocks
/// of one matrix: n = 2 f.
class GatedMlp final : public TwoLinearMlp {
 public:
  GatedMlp(const MlpSpec& spec, const LayerPlace& place, kernels::Activation function);

  /// The gradients of fc1_out and of gelu_out.
  std::int64_t inner_width(const LayerSizes& sizes) const override {
    return 3 * local_width(sizes);
  }
  void forward(const LayerContext& context, const LayerWorkspace& workspace, const Tensor& x,
               const Activations& saved, const Tensor& y) const override;
  Tensor backward(const LayerContext& context, const LayerWorkspace& workspace, const Tensor& dy,
                  const Activations& saved, const DeferredGradients* deferred) const override;
  bool decodes() const override { return true; }
  void decode(const LayerContext& context, const kernels::DecodeNorm& norm,
              const Activations& saved, const Tensor& stream) const override {
    decode_with(context, norm, saved, stream, function_, /*gated=*/true);
  }
  void fc2_gradient(const LayerContext& context, const LayerWorkspace& workspace,
                    const Activations& saved) const override {
    fc2_.later_weight_gradient(context, saved.gelu_out, workspace.mlp_out);
  }

 private:
  kernels::Activation function_;
};

/// y = gelu(x W1^T + b1) W2^T + b2: n = f. The tanh form of the GELU is fused with the GEMMs, the
/// exact one is not.
class GeluMlp final : public TwoLinearMlp {
 public:
  GeluMlp(const MlpSpec& spec, const LayerPlace& place, kernels::Activation gelu);

  Activations take(Arena& arena, const LayerSizes& sizes) const override;
  std::int64_t inner_width(const LayerSizes& sizes) const override { return local_width(sizes); }
  void forward(const LayerContext& context, const LayerWorkspace& workspace, const Tensor& x,
               const Activations& saved, const Tensor& y) const override;
  Tensor backward(const LayerContext& context, const LayerWorkspace& workspace, const Tensor& dy,
                  const Activations& saved, const DeferredGradients* deferred) const override;
  bool decodes() const override { return true; }
  void decode(const LayerContext& context, const kernels::DecodeNorm& norm,
              const Activations& saved, const Tensor& stream) const override {
    decode_with(context, norm, saved, stream, gelu_, /*gated=*/false);
  }
  void fc2_gradient(const LayerContext& context, const LayerWorkspace& workspace,
                    const Activations& saved) const override {
    fc2_.later_weight_gradient(context, saved.gelu_out, workspace.mlp_out);
  }

 private:
  /// Whether fc2's conversion to FP8 applies the GELU: gelu_out is then never in memory.
  bool converts_gelu(const LayerSizes& sizes) const {
    return gelu_ == kernels::Activation::gelu_tanh && fc2_.in_fp8(sizes);
  }

  kernels::Activation gelu_;
};

}  // namespace trireme::model
