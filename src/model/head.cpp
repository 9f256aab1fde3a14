#include "model/head.hpp"

namespace trireme::model {

Head::Activations Head::Activations::take(Arena& arena, const LayerSizes& sizes) {
  const std::int64_t T = sizes.tokens();
  const auto take = [&](Shape shape) { return arena.take(sizes.dtype, shape); };
  Activations a;
  a.mean = take({T});
  a.rstd = take({T});
  a.norm = take({T, sizes.config.hidden});
  a.logits = take({T, sizes.local_vocab()});
  a.max = take({T});
  a.sum = take({T});
  a.target = take({T});
  return a;
}

Head::Head(const ParameterStore& parameters)
    : norm_weight_(parameters["final_norm/weight"]),
      norm_bias_(parameters["final_norm/bias"]),
      word_(parameters["embedding/word"]) {}

void Head::logits(const LayerContext& context, const Tensor& stream,
                  const Activations& saved) const {
  context.backend.layernorm_forward({.x = stream.view({context.tokens(), context.config.hidden}),
                                     .weight = norm_weight_.weight,
                                     .bias = norm_bias_.weight,
                                     .out = saved.norm,
                                     .mean = saved.mean,
                                     .rstd = saved.rstd,
                                     .eps = context.config.layernorm_eps});
  linear_forward(context.backend, saved.norm, word_.weight, saved.logits);
}

void Head::forward(const LayerContext& context, const Tensor& stream, const std::int32_t* labels,
                   const Activations& saved, const Tensor& loss) const {
  logits(context, stream, saved);
  const grid::ShardRange shard = context.vocabulary_shard();
  const auto reduce = [&](const Tensor& tensor, comm::Reduce op) {
    context.tensor.all_reduce(tensor.data, tensor.size(), tensor.dtype, op);
  };
  context.backend.cross_entropy_max(
      {.logits = saved.logits, .columns = shard.size(), .max = saved.max});
  reduce(saved.max, comm::Reduce::max);
  context.backend.cross_entropy_sum({.logits = saved.logits,
                                     .first_column = shard.begin,
                                     .columns = shard.size(),
                                     .labels = labels,
                                     .max = saved.max,
                                     .sum = saved.sum,
                                     .target = saved.target});
  reduce(saved.sum, comm::Reduce::sum);
  reduce(saved.target, comm::Reduce::sum);
  context.backend.cross_entropy_loss(
      {.labels = labels, .max = saved.max, .sum = saved.sum, .target = saved.target, .loss = loss});
}

void Head::backward(const LayerContext& context, const Tensor& stream, const std::int32_t* labels,
                    double scale, const Activations& saved, const Tensor& gradient,
                    const Tensor& scratch) const {
  const grid::ShardRange shard = context.vocabulary_shard();
  const Shape rows{context.tokens(), context.config.hidden};
  context.backend.cross_entropy_backward({.logits = saved.logits,
                                          .first_column = shard.begin,
                                          .columns = shard.size(),
                                          .labels = labels,
                                          .max = saved.max,
                                          .sum = saved.sum,
                                          .scale = scale});
  linear_weight_gradient(context.backend, saved.norm, saved.logits, word_.gradient);
  linear_input_gradient(context.backend, saved.logits, word_.weight, scratch.view(rows));
  context.tensor.all_reduce(scratch.data, scratch.size(), scratch.dtype, comm::Reduce::sum);
  context.backend.zero(gradient);
  context.backend.layernorm_backward({.dout = scratch.view(rows),
                                      .x = stream.view(rows),
                                      .weight = norm_weight_.weight,
                                      .mean = saved.mean,
                                      .rstd = saved.rstd,
                                      .dx = gradient.view(rows),
                                      .dweight = norm_weight_.gradient,
                                      .dbias = norm_bias_.gradient});
}

}  // namespace trireme::model
