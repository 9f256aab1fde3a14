#include "model/layers/residual.hpp"

#include "model/layers/sequence_parallel.hpp"

namespace trireme::model {

kernels::BiasDropoutResidual ResidualAdd::sum(const LayerContext& context, const PassInfo& pass,
                                              const Tensor& x, const Tensor& bias,
                                              const Tensor& residual, const Tensor& out) const {
  return {.x = sp_shard(context, x),
          .bias = bias,
          .residual = residual,
          .out = out,
          .dropout = dropout(pass),
          .first_position = context.first_position()};
}

void ResidualAdd::forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                          const Tensor& bias, const Tensor& residual, const Tensor& out) const {
  context.backend.bias_dropout_residual(sum(context, pass, x, bias, residual, out));
}

void ResidualAdd::forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                          const Tensor& bias, const Tensor& residual, const Tensor& out,
                          const Norm& norm, const NormStatistics& statistics,
                          const Tensor& norm_out) const {
  norm.forward_fused(context, sum(context, pass, x, bias, residual, out), statistics,
                     sp_shard(context, norm_out));
}

Tensor ResidualAdd::backward(const LayerContext& context, const PassInfo& pass,
                             const Tensor& gradient, const Tensor& scratch, bool kept) const {
  const kernels::Dropout dropout = this->dropout(pass);
  if (dropout.probability == 0.0 && !kept) return gradient;
  context.backend.dropout_backward({.dout = gradient,
                                    .dx = scratch,
                                    .dropout = dropout,
                                    .first_position = context.first_position()});
  return scratch;
}

}  // namespace trireme::model
