#include "model/layers/embedding.hpp"

#include "model/layers/linear.hpp"

namespace trireme::model {
namespace {

/// Where `tokens` has positions: those of the tokens of this rank's part of the stream.
const std::int32_t* own_positions(const LayerContext& context, const Embedding::Tokens& tokens) {
  if (!tokens.positions) return nullptr;
  return tokens.positions + context.first_position() * context.micro_batch;
}

}  // namespace

Embedding::Embedding(const ModelSpec& spec)
    : spec_(spec.embedding),
      hidden_(spec.hidden),
      vocab_(spec.vocab),
      init_std_(spec.init_std),
      tied_(spec.head.tied) {
  if (spec_.norm) norm_ = make_norm(*spec_.norm, "embedding/norm/", hidden_);
}

void Embedding::declare(ParameterTableBuilder& table) const {
  table.add({.name = "embedding/word",
             .shape = {vocab_, hidden_},
             .init = Init::normal,
             .init_std = init_std_,
             .weight_decay = true,
             .sharding = TensorSharding::vocabulary,
             .tied = tied_});
  if (norm_) norm_->declare(table);
  table.add({.name = "embedding/position",
             .shape = {spec_.positions, hidden_},
             .init = Init::normal,
             .init_std = init_std_,
             .weight_decay = true,
             .sequence_parallel = true});
}

void Embedding::bind(const ParameterStore& parameters) {
  word_ = parameters["embedding/word"];
  position_ = parameters["embedding/position"];
  if (norm_) norm_->bind(parameters);
}

Embedding::Activations Embedding::take(Arena& arena, const LayerSizes& sizes) const {
  Activations a;
  if (!norm_) return a;
  a.tokens = arena.take(sizes.precision.activations, sizes.shard_shape());
  a.norm = norm_->take(arena, sizes);
  return a;
}

void Embedding::forward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                        const Activations& saved, const Tensor& output,
                        const Tensor& scratch) const {
  const Tensor words = norm_ ? saved.tokens : output;
  const Tensor all_words = context.sp_ranks() > 1 ? scratch : words;
  context.backend.embedding_forward({.ids = tokens.ids,
                                     .table = word_.weight,
                                     .first_row = vocabulary_shard(context, vocab_).begin,
                                     .out = all_words});
  sp_reduce(context, all_words);
  const Tensor summed = sp_shard(context, all_words);
  if (summed.data != words.data) context.backend.copy(words.data, summed.data, words.bytes());
  if (norm_) norm_->forward(context, words, saved.norm, output);
  context.backend.position_dropout(
      {.x = output,
       .position = position_.weight,
       .first_position = tokens.first_position + context.first_position(),
       .dropout = pass.dropout(spec_.dropout, 0, DropoutSite::embedding),
       .rows = own_positions(context, tokens)});
}

void Embedding::backward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                         const Activations& saved, const Tensor& gradient,
                         const Tensor& scratch) const {
  const Shape rows = context.shard_rows();
  const std::int64_t first_position = context.first_position();
  const kernels::Dropout dropout = pass.dropout(spec_.dropout, 0, DropoutSite::embedding);
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
  Tensor dtokens = gradient;
  if (norm_) {
    dtokens = sp_shard(context, scratch);
    context.backend.zero(dtokens);
    norm_->backward(context,
                    {.dout = gradient, .x = saved.tokens, .statistics = saved.norm, .dx = dtokens});
  }
  context.backend.embedding_backward({.ids = tokens.ids,
                                      .dout = sp_gather(context, dtokens, scratch),
                                      .first_row = vocabulary_shard(context, vocab_).begin,
                                      .dtable = word_.gradient});
}

}  // namespace trireme::model
