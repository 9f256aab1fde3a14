// Normalizations over the hidden axis, and the fused residual sum before them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/context.hpp"
#include "model/parameters/store.hpp"
#include "model/spec.hpp"

namespace trireme::model {

/// What a forward pass keeps of each row for the backward pass: [U], of the accumulation type. A
/// kind that needs less leaves tensors empty.
struct NormStatistics {
  Tensor mean, rstd;
};

/// The arguments of Norm::backward().
struct NormGradients {
  Tensor dout;  ///< [U, h]
  Tensor x;     ///< [U, h], the input of the forward pass
  NormStatistics statistics;
  Tensor dx;  ///< [U, h], holds the gradient of the residual branch and is added to
  /// [h]: when given, gets the column sums of the new dx added, the gradient of a bias that was
  /// added to x.
  Tensor dx_sum = {};
  /// [U, h]: when given, gets the output of the forward pass again, bit by bit.
  Tensor out = {};
};

/// A normalization of rows of the hidden size. A new kind implements this and is named by a
/// row of norm_kinds().
class Norm {
 public:
  virtual ~Norm() = default;

  virtual void declare(ParameterTableBuilder& table) const = 0;
  /// `parameters` must hold the declared ones and outlive this.
  virtual void bind(const ParameterStore& parameters) = 0;
  /// What one forward pass keeps, from `arena`.
  virtual NormStatistics take(Arena& arena, const LayerSizes& sizes) const = 0;

  /// Writes out [U, h], the normalized x [U, h], and the statistics. Raises out's amax (see
  /// kernels::Amax), as forward_fused() does, and backward() that of dx.
  virtual void forward(const LayerContext& context, const Tensor& x,
                       const NormStatistics& statistics, const Tensor& out) const = 0;
  /// Enqueues `sum`, then forward() of its result: kinds with a kernel for both override it.
  /// `terms` are none unless adds_terms(); see kernels::BiasDropoutResidualNorm.
  virtual void forward_fused(const LayerContext& context, const kernels::BiasDropoutResidual& sum,
                             const PeerTerms& terms, const NormStatistics& statistics,
                             const Tensor& out) const;
  virtual bool adds_terms() const { return false; }
  /// Adds the gradients of the input, to `args.dx`, and of the parameters.
  virtual void backward(const LayerContext& context, const NormGradients& args) const = 0;
  /// The norm as a part of kernels::DecodeLinear; none for kinds that it does not know.
  virtual std::optional<kernels::DecodeNorm> decode_norm() const { return std::nullopt; }
};

/// Makes the norm of `spec`; `name` is the prefix of its parameters, such as "layers/3/norm1/".
using NormFactory = std::unique_ptr<Norm> (*)(const NormSpec& spec, const std::string& name,
                                              std::int64_t hidden);
/// The norms that a spec may name.
LayerKinds<NormFactory>& norm_kinds();
/// The norm that `spec` names; throws InternalError for an unknown kind.
inline std::unique_ptr<Norm> make_norm(const NormSpec& spec, const std::string& name,
                                       std::int64_t hidden) {
  return norm_kinds().find(spec.kind)(spec, name, hidden);
}

/// A layer norm, with parameters weight and bias [h], or an RMS norm, with a weight [h] alone:
/// kernels::NormKind.
class LayerNorm final : public Norm {
 public:
  /// `name` is the prefix of its parameters, such as "layers/3/norm1/".
  LayerNorm(kernels::NormKind kind, const NormSpec& spec, std::string name, std::int64_t hidden)
      : kind_(kind), name_(std::move(name)), hidden_(hidden), eps_(spec.eps) {}

  void declare(ParameterTableBuilder& table) const override;
  void bind(const ParameterStore& parameters) override;
  NormStatistics take(Arena& arena, const LayerSizes& sizes) const override;
  void forward(const LayerContext& context, const Tensor& x, const NormStatistics& statistics,
               const Tensor& out) const override;
  void forward_fused(const LayerContext& context, const kernels::BiasDropoutResidual& sum,
                     const PeerTerms& terms, const NormStatistics& statistics,
                     const Tensor& out) const override;
  bool adds_terms() const override { return true; }
  void backward(const LayerContext& context, const NormGradients& args) const override;
  std::optional<kernels::DecodeNorm> decode_norm() const override {
    return kernels::DecodeNorm{weight_.weight, bias_.weight, eps_, kind_};
  }

 private:
  bool has_bias() const { return kind_ == kernels::NormKind::layer; }

  kernels::NormKind kind_;
  std::string name_;
  std::int64_t hidden_;
  double eps_;
  WeightGradient weight_, bias_;
};

/// out = residual + dropout(x + bias), where x is a row-parallel linear's output, the sum over the
/// tensor ranks of their terms, and bias its bias.
class ResidualAdd {
 public:
  ResidualAdd(double probability, int layer, DropoutSite site)
      : probability_(probability), layer_(layer), site_(site) {}

  /// Whether the pass drops elements.
  bool drops(const PassInfo& pass) const { return pass.training && probability_ > 0.0; }

  /// Writes out [S, b, h] from the sum x, of which this rank has sp_shard(x), and residual [S, b,
  /// h]; bias [h].
  void forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
               const Tensor& bias, const Tensor& residual, const Tensor& out) const;
  /// Sums the ranks' terms x, then does the same. Collective over the tensor group.
  void sum_forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                   const Tensor& bias, const Tensor& residual, const Tensor& out) const;

  /// A norm of the result, and where it goes.
  struct NormOf {
    const Norm& norm;
    NormStatistics statistics;
    Tensor out;  ///< [T, h], of which sp_shard() is written
  };
  /// sum_forward(), then the norm. Unless `settles`, other ranks may read x until all have begun
  /// their next collective over the tensor group: it may not be written before.
  void sum_forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                   const Tensor& bias, const Tensor& residual, const Tensor& out,
                   const NormOf& norm, bool settles) const;

  /// The gradient of the shard of x, given that of out, [S, b, h]. Without dropout that is
  /// `gradient` itself, unless it must be `kept`; else it is written to `scratch`. Raises the amax
  /// of `scratch` where it drops; without dropout the result has gradient's.
  Tensor backward(const LayerContext& context, const PassInfo& pass, const Tensor& gradient,
                  const Tensor& scratch, bool kept) const;

 private:
  kernels::Dropout dropout(const PassInfo& pass) const {
    return pass.dropout(probability_, layer_, site_);
  }
  kernels::BiasDropoutResidual sum(const LayerContext& context, const PassInfo& pass,
                                   const Tensor& x, const Tensor& bias, const Tensor& residual,
                                   const Tensor& out) const;

  double probability_;
  int layer_;
  DropoutSite site_;
};

}  // namespace trireme::model
