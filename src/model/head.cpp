#include "model/head.hpp"

#include <algorithm>

#include "model/residual_stream.hpp"

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

/// What works on `count` tokens of `saved` from `first` on, of which its scratch tensors hold as
/// many.
Head::Activations tokens_of(const Head::Activations& saved, std::int64_t first,
                            std::int64_t count) {
  Head::Activations part = saved;
  for (Tensor* kept : {&part.norm, &part.gradient}) *kept = kept->rows(first, count);
  for (Tensor* scratch : {&part.logits, &part.max, &part.sum, &part.target, &part.local_max})
    if (*scratch) *scratch = scratch->rows(0, count);
  return part;
}

}  // namespace

Head::Activations Head::Activations::take(Arena& arena, const LayerSizes& sizes) {
  const std::int64_t T = sizes.tokens(), C = sizes.loss_tokens(), h = sizes.config.hidden;
  const DType statistics = wide(sizes.dtype);
  Activations a;
  a.mean = arena.take(statistics, {sizes.stream_rows()[0]});
  a.rstd = arena.take(statistics, {sizes.stream_rows()[0]});
  a.norm = arena.take(sizes.dtype, {T, h});
  a.gradient = arena.take(sizes.dtype, {T, h});
  a.logits = arena.take(sizes.dtype, {C, sizes.local_vocab()});
  a.max = arena.take(statistics, {C});
  a.sum = arena.take(statistics, {C});
  a.target = arena.take(statistics, {C});
  if (sizes.tensor_ranks > 1) a.local_max = arena.take(statistics, {C});
  return a;
}

Head::Head(const ParameterStore& parameters)
    : norm_weight_(parameters["final_norm/weight"]),
      norm_bias_(parameters["final_norm/bias"]),
      word_(parameters["embedding/word"]) {}

void Head::normalize(const LayerContext& context, const Tensor& stream,
                     const Activations& saved) const {
  context.backend.layernorm_forward({.x = stream.view(context.stream_rows()),
                                     .weight = norm_weight_.weight,
                                     .bias = norm_bias_.weight,
                                     .out = own_part(context, saved.norm),
                                     .mean = saved.mean,
                                     .rstd = saved.rstd,
                                     .eps = context.config.layernorm_eps});
  gather(context, saved.norm);
}

void Head::logits(const LayerContext& context, const Tensor& stream,
                  const Activations& saved) const {
  normalize(context, stream, saved);
  linear_forward(context.backend, saved.norm, word_.weight, saved.logits);
}

void Head::forward(const LayerContext& context, const Tensor& stream, const std::int32_t* labels,
                   std::optional<double> scale, const Activations& saved,
                   const Tensor& loss) const {
  normalize(context, stream, saved);
  for (std::int64_t first = 0; first < context.tokens(); first += context.loss_tokens()) {
    const std::int64_t count = std::min(context.loss_tokens(), context.tokens() - first);
    add_loss(context, labels + first, scale, tokens_of(saved, first, count), loss);
  }
}

void Head::add_loss(const LayerContext& context, const std::int32_t* labels,
                    std::optional<double> scale, const Activations& saved,
                    const Tensor& loss) const {
  linear_forward(context.backend, saved.norm, word_.weight, saved.logits);
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
  if (!scale) return;
  linear_input_gradient(context.backend, saved.logits, word_.weight, saved.gradient);
  linear_weight_gradient(context.backend, saved.norm, saved.logits, word_.gradient);
}

void Head::backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                    const Tensor& gradient) const {
  const Shape rows = context.stream_rows();
  sum_partial(context, saved.gradient);
  context.backend.zero(gradient);
  context.backend.layernorm_backward({.dout = own_part(context, saved.gradient),
                                      .x = stream.view(rows),
                                      .weight = norm_weight_.weight,
                                      .mean = saved.mean,
                                      .rstd = saved.rstd,
                                      .dx = gradient.view(rows),
                                      .dweight = norm_weight_.gradient,
                                      .dbias = norm_bias_.gradient});
}

}  // namespace trireme::model
