#include "model/layers/embedding.hpp"

#include "model/layers/linear.hpp"

namespace trireme::model {
namespace {

/// The part of `values` [T], which may be null, that belongs to this rank's part of the stream.
const std::int32_t* sp_shard_ids(const LayerContext& context, const std::int32_t* values) {
  return values ? values + context.first_position() * context.micro_batch : nullptr;
}

/// Writes the elements of `from` to `to`, which may be the same, in the type of `to`.
void move(device::Backend& backend, const Tensor& from, const Tensor& to) {
  if (from.data == to.data) return;
  if (from.dtype == to.dtype) return backend.copy(to.data, from.data, to.bytes());
  backend.cast({.x = from.view({from.size()}), .out = to.view({to.size()})});
}

}  // namespace

Embedding::Embedding(const ModelSpec& spec)
    : spec_(spec.embedding),
      hidden_(spec.hidden),
      vocab_(spec.vocab),
      init_std_(spec.init.embedding_deviation()),
      tied_(spec.head.tied) {
  const auto& norm = spec_.norm ? spec_.norm : spec_.sum_norm;
  if (norm) norm_ = make_norm(*norm, "embedding/norm/", hidden_);
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
  if (spec_.token_types > 0)
    table.add({.name = "embedding/token_type",
               .shape = {spec_.token_types, hidden_},
               .init = Init::normal,
               .init_std = init_std_,
               .weight_decay = true,
               .sequence_parallel = true});
  if (spec_.position != PositionKind::learned) return;
  table.add({.name = "embedding/position",
             .shape = {spec_.positions, hidden_},
             .init = Init::normal,
             .init_std = init_std_,
             .weight_decay = true,
             .sequence_parallel = true});
}

void Embedding::bind(const ParameterStore& parameters) {
  word_ = parameters["embedding/word"];
  if (spec_.token_types > 0) type_ = parameters["embedding/token_type"];
  if (spec_.position == PositionKind::learned) position_ = parameters["embedding/position"];
  if (norm_) norm_->bind(parameters);
}

Embedding::Activations Embedding::take(Arena& arena, const LayerSizes& sizes) const {
  Activations a;
  if (!norm_) return a;
  a.norm_in = arena.take(sizes.precision.activations, sizes.shard_shape());
  a.norm = norm_->take(arena, sizes);
  return a;
}

Embedding::Fp32 Embedding::find_fp32(const std::function<Tensor(const std::string& name)>& find,
                                     const Tensor& sum) const {
  Fp32 fp32{.word = find("embedding/word"), .type = {}, .position = {}, .sum = sum};
  if (spec_.token_types > 0) fp32.type = find("embedding/token_type");
  if (spec_.position == PositionKind::learned) fp32.position = find("embedding/position");
  return fp32;
}

void Embedding::forward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                        const Activations& saved, const Tensor& output, const Tensor& scratch,
                        const Fp32& fp32) const {
  const bool rounds = static_cast<bool>(fp32.sum);
  const Tensor stored = norm_ ? saved.norm_in : output;
  const Tensor all_words = rounds ? fp32.sum : context.sp_ranks() > 1 ? scratch : stored;
  context.backend.embedding_forward({.ids = tokens.ids,
                                     .table = rounds ? fp32.word : word_.weight,
                                     .first_row = vocabulary_shard(context, vocab_).begin,
                                     .out = all_words});
  sp_reduce(context, all_words);
  const Tensor words = sp_shard(context, all_words);
  if (!rounds || spec_.norm) move(context.backend, words, stored);
  if (spec_.norm) norm_->forward(context, stored, saved.norm, output);
  if (rounds && spec_.norm) move(context.backend, output, words);
  const Tensor sum = rounds ? words : spec_.sum_norm ? saved.norm_in : output;
  if (spec_.token_types > 0)
    context.backend.position_dropout({.x = sum,
                                      .position = rounds ? fp32.type : type_.weight,
                                      .rows = sp_shard_ids(context, tokens.types)});
  kernels::Dropout dropout = pass.dropout(spec_.dropout, 0, DropoutSite::embedding);
  const std::int64_t first_position = tokens.first_position + context.first_position();
  if (spec_.position == PositionKind::learned) {
    context.backend.position_dropout({.x = sum,
                                      .position = rounds ? fp32.position : position_.weight,
                                      .first_position = first_position,
                                      .dropout = spec_.sum_norm ? kernels::Dropout() : dropout,
                                      .rows = sp_shard_ids(context, tokens.positions)});
    if (!spec_.sum_norm) dropout = {};
  }
  if (spec_.sum_norm) {
    move(context.backend, sum, saved.norm_in);
    norm_->forward(context, saved.norm_in, saved.norm, output);
  }
  const Tensor embedded = spec_.sum_norm ? output : sum;
  // The backward of dropout is the same product with the mask.
  if (dropout.probability > 0.0)
    context.backend.dropout_backward(
        {.dout = embedded, .dx = embedded, .dropout = dropout, .first_position = first_position});
  scale_stream(context, embedded, spec_.scale);
  move(context.backend, embedded, output);
}

void Embedding::backward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                         const Activations& saved, const Tensor& gradient,
                         const Tensor& scratch) const {
  scale_stream(context, gradient, spec_.scale);
  const Shape rows = context.shard_rows();
  const std::int64_t first_position = context.first_position();
  const kernels::Dropout dropout = pass.dropout(spec_.dropout, 0, DropoutSite::embedding);
  if (dropout.probability > 0.0)
    context.backend.dropout_backward(
        {.dout = gradient, .dx = gradient, .dropout = dropout, .first_position = first_position});
  const auto norm_gradient = [&] {
    const Tensor dx = sp_shard(context, scratch);
    context.backend.zero(dx);
    norm_->backward(context,
                    {.dout = gradient, .x = saved.norm_in, .statistics = saved.norm, .dx = dx});
    return dx;
  };
  if (spec_.sum_norm) {
    const Tensor dsum = norm_gradient();
    context.backend.copy(gradient.data, dsum.data, dsum.bytes());
  }
  if (spec_.token_types > 0)
    context.backend.embedding_backward({.ids = sp_shard_ids(context, tokens.types),
                                        .dout = gradient.view(rows),
                                        .first_row = 0,
                                        .dtable = type_.gradient});
  if (spec_.position != PositionKind::learned) {
    // Its positions have no parameters.
  } else if (tokens.positions) {
    context.backend.embedding_backward({.ids = sp_shard_ids(context, tokens.positions),
                                        .dout = gradient.view(rows),
                                        .first_row = 0,
                                        .dtable = position_.gradient});
  } else {
    context.backend.position_backward(
        {.dout = gradient,
         .dposition = position_.gradient.rows(first_position, gradient.shape[0])});
  }
  const Tensor dtokens = spec_.norm ? norm_gradient() : gradient;
  context.backend.embedding_backward({.ids = tokens.ids,
                                      .dout = sp_gather(context, dtokens, scratch),
                                      .first_row = vocabulary_shard(context, vocab_).begin,
                                      .dtable = word_.gradient});
}

}  // namespace trireme::model
