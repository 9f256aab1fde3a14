#include "model/embedding.hpp"

namespace trireme::model {

Embedding::Activations Embedding::Activations::take(Arena& arena, const LayerSizes& sizes) {
  if (!sizes.config.embedding_layernorm) return {};
  const std::int64_t tokens = sizes.tokens();
  const DType statistics = wide(sizes.dtype);
  return {.words = arena.take(sizes.dtype,
                              {sizes.config.sequence, sizes.micro_batch, sizes.config.hidden}),
          .mean = arena.take(statistics, {tokens}),
          .rstd = arena.take(statistics, {tokens})};
}

Embedding::Embedding(const ParameterStore& parameters, const ModelConfig& config)
    : word_(parameters["embedding/word"]), position_(parameters["embedding/position"]) {
  if (!config.embedding_layernorm) return;
  norm_weight_ = parameters["embedding/norm/weight"];
  norm_bias_ = parameters["embedding/norm/bias"];
}

void Embedding::forward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                        const Activations& saved, const Tensor& output) const {
  const Tensor words = saved.words ? saved.words : output;
  const Shape rows{context.tokens(), context.config.hidden};
  context.backend.embedding_forward({.ids = tokens.ids,
                                     .table = word_.weight,
                                     .first_row = context.vocabulary_shard().begin,
                                     .out = words.view(rows)});
  context.tensor.all_reduce(words.data, words.size(), words.dtype, comm::Reduce::sum);
  if (saved.words)
    context.backend.layernorm_forward({.x = words.view(rows),
                                       .weight = norm_weight_.weight,
                                       .bias = norm_bias_.weight,
                                       .out = output.view(rows),
                                       .mean = saved.mean,
                                       .rstd = saved.rstd,
                                       .eps = context.config.layernorm_eps});
  context.backend.position_dropout(
      {.x = output,
       .position = position_.weight,
       .first_position = tokens.first_position,
       .dropout = dropout_at(context.config, pass, 0, DropoutSite::embedding),
       .rows = tokens.positions});
}

void Embedding::backward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                         const Activations& saved, const Tensor& gradient,
                         const Tensor& scratch) const {
  const Shape rows{context.tokens(), context.config.hidden};
  const kernels::Dropout dropout = dropout_at(context.config, pass, 0, DropoutSite::embedding);
  if (dropout.probability > 0.0)
    context.backend.dropout_backward({.dout = gradient, .dx = gradient, .dropout = dropout});
  if (tokens.positions)
    context.backend.embedding_backward({.ids = tokens.positions,
                                        .dout = gradient.view(rows),
                                        .first_row = 0,
                                        .dtable = position_.gradient});
  else
    context.backend.position_backward({.dout = gradient, .dposition = position_.gradient});
  Tensor dwords = gradient;
  if (saved.words) {
    dwords = scratch;
    context.backend.zero(dwords);
    context.backend.layernorm_backward({.dout = gradient.view(rows),
                                        .x = saved.words.view(rows),
                                        .weight = norm_weight_.weight,
                                        .mean = saved.mean,
                                        .rstd = saved.rstd,
                                        .dx = dwords.view(rows),
                                        .dweight = norm_weight_.gradient,
                                        .dbias = norm_bias_.gradient});
  }
  context.backend.embedding_backward({.ids = tokens.ids,
                                      .dout = dwords.view(rows),
                                      .first_row = context.vocabulary_shard().begin,
                                      .dtable = word_.gradient});
}

}  // namespace trireme::model
