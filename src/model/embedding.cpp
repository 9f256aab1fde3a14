#include "model/embedding.hpp"

#include "model/residual_stream.hpp"

namespace trireme::model {
namespace {

/// Where `tokens` has positions: those of the tokens of this rank's part of the stream.
const std::int32_t* own_positions(const LayerContext& context, const Embedding::Tokens& tokens) {
  if (!tokens.positions) return nullptr;
  return tokens.positions + context.first_position() * context.micro_batch;
}

}  // namespace

Embedding::Activations Embedding::Activations::take(Arena& arena, const LayerSizes& sizes) {
  if (!sizes.config.embedding_layernorm) return {};
  const std::int64_t rows = sizes.stream_rows()[0];
  const DType statistics = wide(sizes.dtype);
  return {.words = arena.take(sizes.dtype, sizes.stream_shape()),
          .mean = arena.take(statistics, {rows}),
          .rstd = arena.take(statistics, {rows})};
}

Embedding::Embedding(const ParameterStore& parameters, const ModelConfig& config)
    : word_(parameters["embedding/word"]), position_(parameters["embedding/position"]) {
  if (!config.embedding_layernorm) return;
  norm_weight_ = parameters["embedding/norm/weight"];
  norm_bias_ = parameters["embedding/norm/bias"];
}

void Embedding::forward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                        const Activations& saved, const Tensor& output,
                        const Tensor& scratch) const {
  const Tensor words = saved.words ? saved.words : output;
  const Tensor all_words = context.stream_parts() > 1 ? scratch : words;
  const Shape rows = context.stream_rows();
  context.backend.embedding_forward({.ids = tokens.ids,
                                     .table = word_.weight,
                                     .first_row = context.vocabulary_shard().begin,
                                     .out = all_words});
  sum_partial(context, all_words);
  const Tensor summed = own_part(context, all_words);
  if (summed.data != words.data) context.backend.copy(words.data, summed.data, words.bytes());
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
       .first_position = tokens.first_position + context.first_position(),
       .dropout = dropout_at(context.config, pass, 0, DropoutSite::embedding),
       .rows = own_positions(context, tokens)});
}

void Embedding::backward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                         const Activations& saved, const Tensor& gradient,
                         const Tensor& scratch) const {
  const Shape rows = context.stream_rows();
  const std::int64_t first_position = context.first_position();
  const kernels::Dropout dropout = dropout_at(context.config, pass, 0, DropoutSite::embedding);
  if (dropout.probability > 0.0)
    context.backend.dropout_backward(
        {.dout = gradient, .dx = gradient, .dropout = dropout, .first_position = first_position});
  if (tokens.positions)
    context.backend.embedding_backward({.ids = own_positions(context, tokens),
                                        .dout = gradient.view(rows),
                                        .first_row = 0,
                                        .dtable = position_.gradient});
  else
    context.backend.position_backward(
        {.dout = gradient,
         .dposition = position_.gradient.rows(first_position, gradient.shape[0])});
  Tensor dwords = gradient;
  if (saved.words) {
    dwords = own_part(context, scratch);
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
                                      .dout = gather(context, dwords, scratch),
                                      .first_row = context.vocabulary_shard().begin,
                                      .dtable = word_.gradient});
}

}  // namespace trireme::model
