#include "model/layers/norm.hpp"

#include "model/layers/linear.hpp"

namespace trireme::model {

void Norm::forward_fused(const LayerContext& context, const kernels::BiasDropoutResidual& sum,
                         const PeerTerms& terms, const NormStatistics& statistics,
                         const Tensor& out) const {
  TRIREME_CHECK(!terms, "a norm that does not add terms");
  context.backend.bias_dropout_residual(sum);
  forward(context, as_rows(sum.out), statistics, as_rows(out));
}

LayerKinds<NormFactory>& norm_kinds() {
  static LayerKinds<NormFactory> kinds = {
      {"layernorm",
       [](const NormSpec& spec, const std::string& name,
          std::int64_t hidden) -> std::unique_ptr<Norm> {
         return std::make_unique<LayerNorm>(kernels::NormKind::layer, spec, name, hidden);
       }},
      {"rmsnorm",
       [](const NormSpec& spec, const std::string& name,
          std::int64_t hidden) -> std::unique_ptr<Norm> {
         return std::make_unique<LayerNorm>(kernels::NormKind::rms, spec, name, hidden);
       }},
  };
  return kinds;
}

void LayerNorm::declare(ParameterTableBuilder& table) const {
  table.add({.name = name_ + "weight",
             .shape = {hidden_},
             .init = Init::ones,
             .sequence_parallel = true});
  if (has_bias())
    table.add({.name = name_ + "bias", .shape = {hidden_}, .sequence_parallel = true});
}

void LayerNorm::bind(const ParameterStore& parameters) {
  weight_ = parameters[name_ + "weight"];
  if (has_bias()) bias_ = parameters[name_ + "bias"];
}

NormStatistics LayerNorm::take(Arena& arena, const LayerSizes& sizes) const {
  const auto take = [&] { return arena.take(sizes.statistics(), {sizes.shard_rows()[0]}); };
  NormStatistics statistics;
  if (has_bias()) statistics.mean = take();
  statistics.rstd = take();
  return statistics;
}

void LayerNorm::forward(const LayerContext& context, const Tensor& x,
                        const NormStatistics& statistics, const Tensor& out) const {
  context.backend.layernorm_forward({.x = as_rows(x),
                                     .weight = weight_.weight,
                                     .bias = bias_.weight,
                                     .out = as_rows(out),
                                     .mean = statistics.mean,
                                     .rstd = statistics.rstd,
                                     .eps = eps_,
                                     .kind = kind_});
}

void LayerNorm::forward_fused(const LayerContext& context, const kernels::BiasDropoutResidual& sum,
                              const PeerTerms& terms, const NormStatistics& statistics,
                              const Tensor& out) const {
  context.backend.bias_dropout_residual_norm({.sum = sum,
                                              .terms = terms,
                                              .weight = weight_.weight,
                                              .norm_bias = bias_.weight,
                                              .norm = out,
                                              .mean = statistics.mean,
                                              .rstd = statistics.rstd,
                                              .eps = eps_,
                                              .kind = kind_});
}

void LayerNorm::backward(const LayerContext& context, const NormGradients& args) const {
  context.backend.layernorm_backward({.dout = as_rows(args.dout),
                                      .x = as_rows(args.x),
                                      .weight = weight_.weight,
                                      .mean = args.statistics.mean,
                                      .rstd = args.statistics.rstd,
                                      .dx = as_rows(args.dx),
                                      .dweight = weight_.gradient,
                                      .dbias = bias_.gradient,
                                      .dx_sum = args.dx_sum,
                                      .out = args.out ? as_rows(args.out) : Tensor(),
                                      .bias = bias_.weight,
                                      .kind = kind_});
}

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

void ResidualAdd::sum_forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                              const Tensor& bias, const Tensor& residual, const Tensor& out) const {
  sp_reduce(context, x);
  forward(context, pass, x, bias, residual, out);
}

void ResidualAdd::sum_forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                              const Tensor& bias, const Tensor& residual, const Tensor& out,
                              const NormOf& norm, bool settles) const {
  PeerTerms terms;
  const int ranks = context.sp_ranks();
  if (ranks > 1 && !settles && norm.norm.adds_terms() &&
      kernels::adds_terms(x.dtype, context.hidden))
    context.tensor.reduce_scatter_terms(x.data, x.size() / ranks, x.dtype, terms);
  else
    sp_reduce(context, x);
  norm.norm.forward_fused(context, sum(context, pass, x, bias, residual, out), terms,
                          norm.statistics, sp_shard(context, norm.out));
}

Tensor ResidualAdd::backward(const LayerContext& context, const PassInfo& pass,
                             const Tensor& gradient, const Tensor& scratch, bool kept) const {
  const kernels::Dropout dropout = this->dropout(pass);
  if (dropout.probability == 0.0 && !kept) return gradient;
  Tensor dx = scratch;
  if (dropout.probability == 0.0) dx.amax = nullptr;
  context.backend.dropout_backward(
      {.dout = gradient, .dx = dx, .dropout = dropout, .first_position = context.first_position()});
  if (dropout.probability == 0.0) dx.amax = gradient.amax;
  return dx;
}

}  // namespace trireme::model
