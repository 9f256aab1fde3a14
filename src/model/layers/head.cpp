#include "model/layers/head.hpp"

#include <algorithm>

#include "model/context.hpp"
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
      max_labels_(spec.head.max_labels),
      init_std_(spec.init.embedding_deviation()),
      logit_scale_(spec.head.logit_scale),
      z_loss_(spec.head.z_loss),
      tied_(spec.head.tied),
      has_bias_(spec.head.output_bias) {
  if (spec.head.norm) norm_ = make_norm(*spec.head.norm, "final_norm/", hidden_);
  if (spec.head.transform) transform_.emplace(*spec.head.transform, hidden_, spec.init.deviation);
  if (spec.head.sentence_classes > 0)
    sentence_.emplace(spec.head.sentence_classes, hidden_, spec.init.deviation);
}

void Head::declare(ParameterTableBuilder& table) const {
  if (norm_) norm_->declare(table);
  if (transform_) transform_->declare(table);
  if (!tied_)  // else declared by the embedding
    table.add({.name = "head/weight",
               .shape = {vocab_, hidden_},
               .init = Init::normal,
               .init_std = init_std_,
               .weight_decay = true,
               .sharding = TensorSharding::vocabulary});
  if (has_bias_)
    table.add({.name = "head/bias", .shape = {vocab_}, .sharding = TensorSharding::vocabulary});
  if (sentence_) sentence_->declare(table);
}

void Head::bind(const ParameterStore& parameters) {
  if (norm_) norm_->bind(parameters);
  if (transform_) transform_->bind(parameters);
  if (sentence_) sentence_->bind(parameters);
  if (has_bias_) bias_ = parameters["head/bias"];
  output_ = parameters[tied_ ? "embedding/word" : "head/weight"];
}

std::int64_t Head::labelled_tokens(const LayerSizes& sizes) const {
  if (max_labels_ == 0) return sizes.tokens();
  return std::min(sizes.micro_batch * max_labels_, sizes.tokens());
}

std::int64_t Head::loss_tokens(const LayerSizes& sizes) const {
  const std::int64_t tokens = labelled_tokens(sizes);
  const std::int64_t times = (tokens + max_loss_tokens_ - 1) / max_loss_tokens_;
  return times > 1 ? (tokens + times - 1) / times : tokens;
}

Head::Activations Head::take(Arena& arena, const LayerSizes& sizes) const {
  const std::int64_t T = sizes.tokens(), C = loss_tokens(sizes);
  const DType statistics = sizes.statistics();
  Activations a;
  if (norm_) a.norm = norm_->take(arena, sizes);
  if (norm_ && transform_) a.hidden = arena.take(sizes.precision.activations, sizes.shard_rows());
  if (transform_) a.transform = transform_->take(arena, sizes);
  if (sentence_) a.sentence = sentence_->take(arena, sizes);
  a.norm_out = arena.take(sizes.precision.activations, {T, hidden_});
  a.gradient = arena.take(sizes.precision.activations, {T, hidden_});
  if (const std::int64_t n = labelled_tokens(sizes); n < T) {
    a.selected = {.rows = arena.take_ints(n),
                  .labels = arena.take_ints(n),
                  .places = arena.take_ints(T),
                  .norm_out = arena.take(sizes.precision.activations, {n, hidden_}),
                  .gradient = arena.take(sizes.precision.activations, {n, hidden_})};
  }
  a.logits = arena.take(sizes.precision.activations, {C, local_vocab(sizes)});
  a.max = arena.take(statistics, {C});
  a.sum = arena.take(statistics, {C});
  a.target = arena.take(statistics, {C});
  if (sizes.tensor_ranks > 1) a.local_max = arena.take(statistics, {C});
  return a;
}

Tensor Head::hidden_states(const LayerContext& context, const Tensor& stream,
                           const Activations& saved) const {
  if (!norm_) return as_rows(stream);
  return transform_ ? saved.hidden : sp_shard(context, saved.norm_out);
}

void Head::normalize(const LayerContext& context, const Tensor& stream,
                     const Activations& saved) const {
  const Tensor hidden = hidden_states(context, stream, saved);
  const Tensor out = sp_shard(context, saved.norm_out);
  if (norm_) norm_->forward(context, stream, saved.norm, hidden);
  if (transform_)
    transform_->forward(context, hidden, saved.transform, out);
  else if (!norm_)
    context.backend.copy(out.data, hidden.data, hidden.bytes());
  sp_gather(context, saved.norm_out);
  scale_stream(context, saved.norm_out, logit_scale_);
}

void Head::logits(const LayerContext& context, const Tensor& stream,
                  const Activations& saved) const {
  TRIREME_CHECK(context.tokens() <= loss_tokens(context),
                "logits of {} tokens do not fit the memory of {}", context.tokens(),
                loss_tokens(context));
  const auto norm = norm_ ? norm_->decode_norm() : std::nullopt;
  if (norm && !transform_ && logit_scale_ == 1.0 && decodes_fused(context) &&
      context.sp_ranks() == 1)
    return context.backend.decode_linear({.x = as_rows(stream),
                                          .weight = output_.weight,
                                          .y = saved.logits,
                                          .norm = *norm,
                                          .bias = bias_.weight});
  normalize(context, stream, saved);
  linear_forward(context.backend, saved.norm_out, output_.weight, saved.logits, bias_.weight);
}

void Head::forward(const LayerContext& context, const Tensor& stream, const Labels& labels,
                   const std::optional<LossScales>& scales, const Activations& saved,
                   const Tensor& losses, const Observer& observer) const {
  normalize(context, stream, saved);
  const auto scale = [&](double LossScales::*which) {
    return scales ? std::optional(*scales.*which) : std::nullopt;
  };
  if (sentence_)
    sentence_->forward(context, hidden_states(context, stream, saved), labels.sentences,
                       scale(&LossScales::sentences), saved.sentence, losses.rows(1, 1));
  Activations read = saved;  // by the output projection
  const std::int32_t* read_labels = labels.tokens;
  std::int64_t tokens = context.tokens();
  const bool selects = labelled_tokens(context) < tokens && !observer;
  if (selects) {
    select(context, labels.tokens, saved);
    read.norm_out = saved.selected.norm_out;
    read.gradient = saved.selected.gradient;
    read_labels = saved.selected.labels;
    tokens = labelled_tokens(context);
  }
  for (std::int64_t first = 0; first < tokens; first += loss_tokens(context)) {
    const std::int64_t count = std::min(loss_tokens(context), tokens - first);
    const Activations part = tokens_of(read, first, count);
    add_loss(context, read_labels + first, scale(&LossScales::tokens), part, losses.rows(0, 1),
             losses.rows(2, 1));
    if (observer && !scales) observer(first, part);
  }
  if (selects && scales)  // zeros for tokens without a label
    context.backend.embedding_forward(
        {.ids = saved.selected.places, .table = saved.selected.gradient, .out = saved.gradient});
}

void Head::select(const LayerContext& context, const std::int32_t* labels,
                  const Activations& saved) const {
  const SelectedTokens& selected = saved.selected;
  context.backend.select_labels({.labels = labels,
                                 .tokens = context.tokens(),
                                 .rows = selected.rows,
                                 .selected = selected.labels,
                                 .capacity = selected.norm_out.shape[0],
                                 .places = selected.places});
  context.backend.embedding_forward(
      {.ids = selected.rows, .table = saved.norm_out, .out = selected.norm_out});
}

void Head::add_loss(const LayerContext& context, const std::int32_t* labels,
                    std::optional<double> scale, const Activations& saved, const Tensor& loss,
                    const Tensor& largest) const {
  linear_forward(context.backend, saved.norm_out, output_.weight, saved.logits, bias_.weight);
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
    context.backend.cross_entropy_statistics_backward(
        {.statistics = statistics, .scale = *scale, .z_loss = z_loss_});
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
                                              .scale = *scale,
                                              .z_loss = z_loss_});
  }
  context.backend.cross_entropy_loss({.labels = labels,
                                      .max = saved.max,
                                      .sum = saved.sum,
                                      .target = saved.target,
                                      .loss = loss,
                                      .largest = largest});
  if (!scale) return;
  linear_input_gradient(context.backend, saved.logits, output_.weight, saved.gradient);
  linear_weight_gradient(context.backend, saved.norm_out, saved.logits, output_.gradient,
                         bias_.gradient);
}

void Head::backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                    const Tensor& gradient) const {
  scale_stream(context, saved.gradient, logit_scale_);
  sp_reduce(context, saved.gradient);
  const Tensor dhidden = sp_shard(context, saved.gradient);  // after the transform's
  if (transform_)
    transform_->backward(context, hidden_states(context, stream, saved), saved.transform, dhidden);
  if (sentence_) sentence_->backward(context, saved.sentence, dhidden);
  if (!norm_) return context.backend.copy(gradient.data, dhidden.data, gradient.bytes());
  context.backend.zero(gradient);
  norm_->backward(context,
                  {.dout = dhidden, .x = stream, .statistics = saved.norm, .dx = gradient});
}

// ---- the transform of the masked-LM head

MaskedLmTransform::MaskedLmTransform(const NormSpec& norm, std::int64_t hidden, double init_std)
    : hidden_(hidden), init_std_(init_std), norm_(make_norm(norm, "masked_lm/norm/", hidden)) {}

void MaskedLmTransform::declare(ParameterTableBuilder& table) const {
  table.add({.name = "masked_lm/dense/weight",
             .shape = {hidden_, hidden_},
             .init = Init::normal,
             .init_std = init_std_,
             .weight_decay = true,
             .sequence_parallel = true});
  table.add({.name = "masked_lm/dense/bias", .shape = {hidden_}, .sequence_parallel = true});
  norm_->declare(table);
}

void MaskedLmTransform::bind(const ParameterStore& parameters) {
  weight_ = parameters["masked_lm/dense/weight"];
  bias_ = parameters["masked_lm/dense/bias"];
  norm_->bind(parameters);
}

MaskedLmTransform::Activations MaskedLmTransform::take(Arena& arena,
                                                       const LayerSizes& sizes) const {
  Activations a;
  for (Tensor* tensor : {&a.dense_out, &a.gelu_out, &a.scratch})
    *tensor = arena.take(sizes.precision.activations, sizes.shard_rows());
  a.norm = norm_->take(arena, sizes);
  return a;
}

void MaskedLmTransform::forward(const LayerContext& context, const Tensor& x,
                                const Activations& saved, const Tensor& out) const {
  linear_forward(context.backend, x, weight_.weight, saved.dense_out, bias_.weight);
  context.backend.gelu_forward(
      {.x = saved.dense_out, .out = saved.gelu_out, .function = kernels::Activation::gelu});
  norm_->forward(context, saved.gelu_out, saved.norm, out);
}

void MaskedLmTransform::backward(const LayerContext& context, const Tensor& x,
                                 const Activations& saved, const Tensor& gradient) const {
  const Tensor& dgelu = saved.scratch;
  context.backend.zero(dgelu);
  norm_->backward(context,
                  {.dout = gradient, .x = saved.gelu_out, .statistics = saved.norm, .dx = dgelu});
  context.backend.gelu_backward({.dout = dgelu,
                                 .x = saved.dense_out,
                                 .dx = dgelu,
                                 .dbias = bias_.gradient,
                                 .function = kernels::Activation::gelu});
  linear_weight_gradient(context.backend, x, dgelu, weight_.gradient);
  linear_input_gradient(context.backend, dgelu, weight_.weight, gradient);
}

// ---- the sentence head

void SentenceHead::declare(ParameterTableBuilder& table) const {
  const auto matrix = [&](const char* name, std::int64_t rows) {
    table.add({.name = name,
               .shape = {rows, hidden_},
               .init = Init::normal,
               .init_std = init_std_,
               .weight_decay = true});
  };
  matrix("pooler/weight", hidden_);
  table.add({.name = "pooler/bias", .shape = {hidden_}});
  matrix("sentence/weight", classes_);
  table.add({.name = "sentence/bias", .shape = {classes_}});
}

void SentenceHead::bind(const ParameterStore& parameters) {
  pooler_ = parameters["pooler/weight"];
  pooler_bias_ = parameters["pooler/bias"];
  classifier_ = parameters["sentence/weight"];
  classifier_bias_ = parameters["sentence/bias"];
}

SentenceHead::Activations SentenceHead::take(Arena& arena, const LayerSizes& sizes) const {
  const std::int64_t b = sizes.micro_batch;
  Activations a;
  for (Tensor* tensor : {&a.first, &a.dense_out, &a.pooled, &a.scratch})
    *tensor = arena.take(sizes.precision.activations, {b, hidden_});
  a.logits = arena.take(sizes.precision.activations, {b, classes_});
  for (Tensor* tensor : {&a.max, &a.sum, &a.target}) *tensor = arena.take(sizes.statistics(), {b});
  return a;
}

void SentenceHead::forward(const LayerContext& context, const Tensor& hidden,
                           const std::int32_t* labels, std::optional<double> scale,
                           const Activations& saved, const Tensor& loss) const {
  // Tensor rank 0 has the first position of every sample, in any case.
  context.backend.copy(saved.first.data, hidden.data, saved.first.bytes());
  if (context.sp_ranks() > 1)
    context.tensor.broadcast(saved.first.data, saved.first.bytes(), /*root=*/0);
  linear_forward(context.backend, saved.first, pooler_.weight, saved.dense_out,
                 pooler_bias_.weight);
  context.backend.gelu_forward(
      {.x = saved.dense_out, .out = saved.pooled, .function = kernels::Activation::tanh});
  linear_forward(context.backend, saved.pooled, classifier_.weight, saved.logits,
                 classifier_bias_.weight);
  const kernels::CrossEntropyStatistics statistics{.logits = saved.logits,
                                                   .columns = classes_,
                                                   .labels = labels,
                                                   .max = saved.max,
                                                   .sum = saved.sum,
                                                   .target = saved.target};
  if (scale)
    context.backend.cross_entropy_statistics_backward({.statistics = statistics, .scale = *scale});
  else
    context.backend.cross_entropy_statistics(statistics);
  context.backend.cross_entropy_loss(
      {.labels = labels, .max = saved.max, .sum = saved.sum, .target = saved.target, .loss = loss});
}

void SentenceHead::backward(const LayerContext& context, const Activations& saved,
                            const Tensor& gradient) const {
  const Tensor& dpooled = saved.scratch;
  linear_weight_gradient(context.backend, saved.pooled, saved.logits, classifier_.gradient,
                         classifier_bias_.gradient);
  linear_input_gradient(context.backend, saved.logits, classifier_.weight, dpooled);
  context.backend.gelu_backward({.dout = dpooled,
                                 .x = saved.dense_out,
                                 .dx = dpooled,
                                 .dbias = pooler_bias_.gradient,
                                 .function = kernels::Activation::tanh});
  linear_weight_gradient(context.backend, saved.first, dpooled, pooler_.gradient);
  const bool has_first_position = context.sp_ranks() == 1 || context.tensor.rank() == 0;
  if (!has_first_position) return;
  const Tensor& dfirst = saved.pooled;  // not read any more
  linear_input_gradient(context.backend, dpooled, pooler_.weight, dfirst);
  add(context.backend, gradient.rows(0, dfirst.shape[0]), dfirst);
}

}  // namespace trireme::model
