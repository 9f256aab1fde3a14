#include "model/head.hpp"

namespace trireme::model {
namespace {

/// From the statistics of each rank's columns to those of the whole vocabulary.
void reduce_statistics(const LayerContext& context, const Head::Activations& saved) {
  const auto reduce = [&](const Tensor& tensor, comm::Reduce op) {
    context.tensor.all_reduce(tensor.data, tensor.size(), tensor.dtype, op);
  };
  context.backend.copy(saved.max.data, saved.local_max.data, saved.max.bytes());
  reduce(saved.max, comm::Reduce::max);
  context.backend.cross_entropy_rescale(
      {.local_max = saved.local_max, .max = saved.max, .sum = saved.sum});
  reduce(saved.sum, comm::Reduce::sum);
  reduce(saved.target, comm::Reduce::sum);
}

}  // namespace

Head::Activations Head::Activations::take(Arena& arena, const LayerSizes& sizes) {
  const std::int64_t T = sizes.tokens();
  const auto take = [&](Shape shape) { return arena.take(sizes.dtype, shape); };
  const auto take_statistics = [&] { return arena.take(wide(sizes.dtype), {T}); };
  Activations a;
  a.mean = take_statistics();
  a.rstd = take_statistics();
  a.norm = take({T, sizes.config.hidden});
  a.logits = take({T, sizes.local_vocab()});
  a.max = take_statistics();
  a.sum = take_statistics();
  a.target = take_statistics();
  if (sizes.tensor_ranks > 1) a.local_max = take_statistics();
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
                   std::optional<double> scale, const Activations& saved,
                   const Tensor& loss) const {
  logits(context, stream, saved);
  const grid::ShardRange shard = context.vocabulary_shard();
  const bool sharded = context.tensor_ranks > 1;
  const kernels::CrossEntropyStatistics statistics{.logits = saved.logits,
                                                   .first_column = shard.begin,
                                                   .columns = shard.size(),
                                                   .labels = labels,
                                                   .max = sharded ? saved.local_max : saved.max,
                                                   .sum = saved.sum,
                                                   .target = saved.target};
  if (scale && !sharded) {
    context.backend.cross_entropy_statistics_backward({.statistics = statistics, .scale = *scale});
  } else {
    context.backend.cross_entropy_statistics(statistics);
    if (sharded) reduce_statistics(context, saved);
    if (scale)
      context.backend.cross_entropy_backward({.logits = saved.logits,
                                              .first_column = shard.begin,
                                              .columns = shard.size(),
                                              .labels = labels,
                                              .max = saved.max,
                                              .sum = saved.sum,
                                              .scale = *scale});
  }
  context.backend.cross_entropy_loss(
      {.labels = labels, .max = saved.max, .sum = saved.sum, .target = saved.target, .loss = loss});
}

void Head::backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                    const Tensor& gradient, const Tensor& scratch) const {
  const Shape rows{context.tokens(), context.config.hidden};
  linear_input_gradient(context.backend, saved.logits, word_.weight, scratch.view(rows));
  const auto sum = context.tensor.start_all_reduce(scratch.data, scratch.size(), scratch.dtype,
                                                   comm::Reduce::sum);
  linear_weight_gradient(context.backend, saved.norm, saved.logits, word_.gradient);
  sum->wait();
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
