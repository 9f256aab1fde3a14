#include "model/layers/attention.hpp"

namespace trireme::model {

Attention::Attention(const AttentionSpec& spec, const LayerPlace& place)
    : spec_(spec),
      layer_(place.layer),
      qkv_({.name = place.name + "attention/qkv/",
            .out = {spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim,
                    spec.kv_heads * spec.head_dim},
            .in = place.hidden,
            .init_std = place.init_std,
            .bias = spec.qkv_bias,
            .fp8 = place.fp8}),
      projection_({.name = place.name + "attention/projection/",
                   .out = {place.hidden},
                   .in = spec.heads * spec.head_dim,
                   .init_std = place.output_init_std,
                   .bias = spec.output_bias,
                   .fp8 = place.fp8}) {}

void Attention::declare(ParameterTableBuilder& table) const {
  qkv_.declare(table);
  projection_.declare(table);
}

void Attention::bind(const ParameterStore& parameters) {
  qkv_.bind(parameters);
  projection_.bind(parameters);
}

Attention::Activations Attention::take(Arena& arena, const LayerSizes& sizes) const {
  const std::int64_t s = sizes.sequence, b = sizes.micro_batch;
  Activations a;
  a.qkv = arena.take(sizes.precision.activations, {s, b, qkv_.local_out(sizes)});
  a.lse = arena.take(sizes.statistics(), {b, local_heads(sizes), s});
  a.attn_out = arena.take(sizes.precision.activations, {s, b, heads_width(sizes)});
  a.qkv_in = qkv_.take_input(arena, sizes);
  a.projection_in = projection_.take_input(arena, sizes);
  return a;
}

void Attention::take_fp8_weights(Arena& arena, const LayerSizes& sizes) {
  qkv_.take_fp8_weight(arena, sizes);
  projection_.take_fp8_weight(arena, sizes);
}

void Attention::forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                        const Activations& saved, const Tensor& y) const {
  qkv_.gather_input(context, x);
  qkv_.forward(context, x, saved.qkv, saved.qkv_in);
  context.backend.attention_forward(
      {.qkv = saved.qkv,
       .out = saved.attn_out,
       .lse = saved.lse,
       .heads = local_heads(context),
       .first_head = context.tensor.rank() * local_heads(context),
       .dropout = pass.dropout(spec_.dropout, layer_, DropoutSite::attention),
       .causal = spec_.causal,
       .document_start = pass.document_start,
       .lengths = pass.lengths});
  projection_.forward(context, saved.attn_out, y, saved.projection_in);
}

void Attention::forward_cached(const LayerContext& context, const Tensor& x,
                               const Activations& saved, std::span<const CachedSequence> sequences,
                               const Tensor& y) const {
  TRIREME_CHECK(spec_.causal, "attention that sees later tokens has no cache");
  qkv_.gather_input(context, x);
  qkv_.forward(context, x, saved.qkv);
  std::int64_t first = 0;
  for (const CachedSequence& sequence : sequences) {
    context.backend.attention_cached({.qkv = saved.qkv.rows(first, sequence.tokens),
                                      .keys = sequence.keys,
                                      .values = sequence.values,
                                      .out = saved.attn_out.rows(first, sequence.tokens),
                                      .heads = local_heads(context),
                                      .past = sequence.past});
    first += sequence.tokens;
  }
  projection_.forward(context, saved.attn_out, y);
}

Tensor Attention::backward(const LayerContext& context, const LayerWorkspace& workspace,
                           const PassInfo& pass, const Tensor& dy, const Activations& saved,
                           bool add_bias, const DeferredGradients* deferred) const {
  const Tensor complete = projection_.weight_gradient(
      context, saved.attn_out, dy, workspace.hidden, deferred != nullptr,
      add_bias ? BiasGradient::separate : BiasGradient::elsewhere, saved.projection_in);
  const Tensor dout = front(workspace.heads, saved.attn_out.shape);
  projection_.input_gradient(context, complete, dout);
  const Tensor dqkv = front(workspace.inner, saved.qkv.shape);
  context.backend.attention_backward(
      {.dout = dout,
       .qkv = saved.qkv,
       .out = saved.attn_out,
       .lse = saved.lse,
       .dqkv = dqkv,
       .heads = local_heads(context),
       .first_head = context.tensor.rank() * local_heads(context),
       .dropout = pass.dropout(spec_.dropout, layer_, DropoutSite::attention),
       .causal = spec_.causal,
       .document_start = pass.document_start,
       .lengths = pass.lengths});
  qkv_.input_gradient(context, dqkv, workspace.hidden);
  return dqkv;
}

void Attention::qkv_gradient(const LayerContext& context, const Tensor& x, const Tensor& dqkv,
                             const Activations& saved, const DeferredGradients* deferred) const {
  qkv_.weight_gradient(context, x, dqkv, deferred ? &deferred->first : nullptr,
                       /*add_bias=*/true, saved.qkv_in);
}

void Attention::backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                                 const Tensor& x, const Activations& saved,
                                 const DeferredGradients& deferred) const {
  projection_.deferred_weight_gradient(context, saved.attn_out, deferred.second, workspace.hidden,
                                       saved.projection_in);
  qkv_.deferred_weight_gradient(context, x, deferred.first, saved.qkv_in);
}

}  // namespace trireme::model
