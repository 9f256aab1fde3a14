#include "model/layers/bert_head.hpp"

#include "model/layers/linear.hpp"

namespace trireme::model {

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
