#include "model/layers/head.hpp"

#include <algorithm>

#include "model/layers/linear.hpp"

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
  for (Tensor* kept : {&part.norm_out, &part.gradient}) *kept = kept->rows(first, count);
  for (Tensor* scratch : {&part.logits, &part.max, &part.sum, &part.target, &part.local_max})
    if (*scratch) *scratch = scratch->rows(0, count);
  return part;
}

}  // namespace

Head::Head(const ModelSpec& spec, std::int64_t max_loss_tokens)
    : hidden_(spec.hidden),
      vocab_(spec.vocab),
      max_loss_tokens_(max_loss_tokens),
      init_std_(spec.init_std),
      tied_(spec.head.tied),
      norm_(make_norm(spec.head.norm, "final_norm/", spec.hidden)) {}

void Head::declare(ParameterTableBuilder& table) const {
  norm_->declare(table);
  if (tied_) return;  // declared by the embedding
  table.add({.name = "head/weight",
             .shape = {vocab_, hidden_},
             .init = Init::normal,
             .init_std = init_std_,
             .weight_decay = true,
             .sharding = TensorSharding::vocabulary});
}

void Head::bind(const ParameterStore& parameters) {
  norm_->bind(parameters);
  output_ = parameters[tied_ ? "embedding/word" : "head/weight"];
}

std::int64_t Head::loss_tokens(const LayerSizes& sizes) const {
  const std::int64_t times = (sizes.tokens() + max_loss_tokens_ - 1) / max_loss_tokens_;
  return times > 1 ? (sizes.tokens() + times - 1) / times : sizes.tokens();
}

Head::Activations Head::take(Arena& arena, const LayerSizes& sizes) const {
  const std::int64_t T = sizes.tokens(), C = loss_tokens(sizes);
  const DType statistics = sizes.statistics();
  Activations a;
  a.norm = norm_->take(arena, sizes);
  a.norm_out = arena.take(sizes.precision.activations, {T, hidden_});
  a.gradient = arena.take(sizes.precision.activations, {T, hidden_});
  a.logits = arena.take(sizes.precision.activations, {C, local_vocab(sizes)});
  a.max = arena.take(statistics, {C});
  a.sum = arena.take(statistics, {C});
  a.target = arena.take(statistics, {C});
  if (sizes.tensor_ranks > 1) a.local_max = arena.take(statistics, {C});
  return a;
}

void Head::normalize(const LayerContext& context, const Tensor& stream,
                     const Activations& saved) const {
  norm_->forward(context, stream, saved.norm, sp_shard(context, saved.norm_out));
  sp_gather(context, saved.norm_out);
}

void Head::logits(const LayerContext& context, const Tensor& stream,
                  const Activations& saved) const {
  normalize(context, stream, saved);
  linear_forward(context.backend, saved.norm_out, output_.weight, saved.logits);
}

void Head::forward(const LayerContext& context, const Tensor& stream, const std::int32_t* labels,
                   std::optional<double> scale, const Activations& saved,
                   const Tensor& loss) const {
  normalize(context, stream, saved);
  for (std::int64_t first = 0; first < context.tokens(); first += loss_tokens(context)) {
    const std::int64_t count = std::min(loss_tokens(context), context.tokens() - first);
    add_loss(context, labels + first, scale, tokens_of(saved, first, count), loss);
  }
}

void Head::add_loss(const LayerContext& context, const std::int32_t* labels,
                    std::optional<double> scale, const Activations& saved,
                    const Tensor& loss) const {
  linear_forward(context.backend, saved.norm_out, output_.weight, saved.logits);
  const grid::ShardRange shard = vocabulary_shard(context, vocab_);
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
  linear_input_gradient(context.backend, saved.logits, output_.weight, saved.gradient);
  linear_weight_gradient(context.backend, saved.norm_out, saved.logits, output_.gradient);
}

void Head::backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                    const Tensor& gradient) const {
  sp_reduce(context, saved.gradient);
  context.backend.zero(gradient);
  norm_->backward(context, {.dout = sp_shard(context, saved.gradient),
                            .x = stream,
                            .statistics = saved.norm,
                            .dx = gradient});
}

}  // namespace trireme::model
