// The fused seam between a sublayer and the residual stream: bias, dropout and residual sum, and
// where the next layer is a norm, that as well.
#pragma once

#include "model/layers/norm.hpp"

namespace trireme::model {

/// out = residual + dropout(x + bias), where x is a row-parallel linear's output and bias its bias.
class ResidualAdd {
 public:
  ResidualAdd(double probability, int layer, DropoutSite site)
      : probability_(probability), layer_(layer), site_(site) {}

  /// Whether the pass drops elements.
  bool drops(const PassInfo& pass) const { return pass.training && probability_ > 0.0; }

  /// Writes out [S, b, h] from x, of which this rank has sp_shard(x), and residual [S, b, h]; bias
  /// [h].
  void forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
               const Tensor& bias, const Tensor& residual, const Tensor& out) const;
  /// The same, then the norm of the result, in its sp_shard(norm_out) [T, h].
  void forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
               const Tensor& bias, const Tensor& residual, const Tensor& out, const Norm& norm,
               const NormStatistics& statistics, const Tensor& norm_out) const;

  /// The gradient of the shard of x, given that of out, [S, b, h]. Without dropout that is
  /// `gradient` itself, unless it is to be `kept`; else it is written to `scratch`.
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
