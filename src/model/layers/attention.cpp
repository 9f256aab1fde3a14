#include "model/layers/attention.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::model {
namespace {

/// The angle by which each pair of a head turns from position to position, and by how much queries
/// and keys are scaled. Sources: Hugging Face transformers, modeling_rope_utils.py; Peng et al.,
/// "YaRN" (2023), section 3.
struct RotaryFrequencies {
  std::vector<double> values;
  double scale = 1.0;
};

RotaryFrequencies rotary_frequencies(const RotarySpec& spec, std::int64_t head_dim) {
  const double d = static_cast<double>(head_dim);
  RotaryFrequencies frequencies;
  for (std::int64_t i = 0; i < head_dim / 2; ++i)
    frequencies.values.push_back(std::pow(spec.theta, -2.0 * static_cast<double>(i) / d));
  // The pair, not a whole number, that makes so many turns in the original context.
  const auto pair_of = [&](double turns) {
    return d * std::log(spec.original / (2.0 * std::numbers::pi * turns)) /
           (2.0 * std::log(spec.theta));
  };
  const double first = std::max(std::floor(pair_of(spec.high)), 0.0);
  const double last = std::max(std::min(std::ceil(pair_of(spec.low)), d - 1.0), first + 1e-3);
  for (std::size_t i = 0; i < frequencies.values.size(); ++i) {
    double& f = frequencies.values[i];
    const double turns = spec.original * f / (2.0 * std::numbers::pi);
    double kept = 1.0;  // share of the original frequency
    if (spec.scaling == PositionScaling::linear) kept = 0.0;
    if (spec.scaling == PositionScaling::llama3)
      kept = std::clamp((turns - spec.low) / (spec.high - spec.low), 0.0, 1.0);
    if (spec.scaling == PositionScaling::yarn)
      kept = 1.0 - std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    f = kept * f + (1.0 - kept) * f / spec.factor;
  }
  if (spec.scaling == PositionScaling::yarn && spec.factor > 1.0)
    frequencies.scale = 0.1 * std::log(spec.factor) + 1.0;
  return frequencies;
}

}  // namespace

std::vector<double> rotary_table(const RotarySpec& spec, std::int64_t positions,
                                 std::int64_t head_dim) {
  const RotaryFrequencies frequencies = rotary_frequencies(spec, head_dim);
  const std::int64_t half = head_dim / 2;
  std::vector<double> table(positions * head_dim);
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies.values[i];
      table[p * head_dim + i] = frequencies.scale * std::cos(angle);
      table[p * head_dim + half + i] = frequencies.scale * std::sin(angle);
    }
  return table;
}

Tensor take_rotary_table(Arena& arena, const ModelSpec& spec, const LayerSizes& sizes,
                         std::int64_t positions) {
  for (const BlockSpec& block : spec.blocks)
    if (block.attention.rotary)
      return arena.take(sizes.statistics(), {positions, block.attention.head_dim});
  return {};
}

void write_rotary_table(device::Backend& backend, const ModelSpec& spec, const Tensor& table) {
  if (!table) return;
  const std::vector<double> values =
      rotary_table(spec.embedding.rotary, table.shape[0], table.shape[1]);
  dispatch(table.dtype, [&](auto element) {
    const std::vector<decltype(element)> rounded(values.begin(), values.end());
    backend.upload(table.data, rounded.data(), table.bytes());
  });
}

Attention::Attention(const AttentionSpec& spec, const LayerPlace& place)
    : spec_(spec),
      name_(place.name + "attention/"),
      layer_(place.layer),
      qkv_({.name = place.name + "attention/qkv/",
            .out = {spec.heads * spec.head_dim,
                    {spec.kv_heads * spec.head_dim, static_cast<int>(spec.kv_heads)},
                    {spec.kv_heads * spec.head_dim, static_cast<int>(spec.kv_heads)}},
            .in = place.hidden,
            .init_std = place.init_std,
            .bias = spec.qkv_bias,
            .fp8 = place.fp8,
            .fp8_blocks = place.fp8_blocks,
            .fp8_number = place.fp8_number(0)}),
      projection_({.name = place.name + "attention/projection/",
                   .out = {place.hidden},
                   .in = spec.heads * spec.head_dim,
                   .init_std = place.output_init_std,
                   .bias = spec.output_bias,
                   .fp8 = place.fp8,
                   .fp8_blocks = place.fp8_blocks,
                   .fp8_number = place.fp8_number(1)}) {}

void Attention::declare(ParameterTableBuilder& table) const {
  qkv_.declare(table);
  if (spec_.qk_norm != QkNorm::none)
    for (const auto& [part, heads] :
         {std::pair("q", spec_.heads), std::pair("k", spec_.kv_heads)}) {
      // A weight that all heads share is whole on each tensor rank, with the gradient of its heads.
      const std::int64_t weights = spec_.qk_norm == QkNorm::width ? heads : 1;
      table.add({.name = fmt::format("{}{}_norm/weight", name_, part),
                 .shape = {weights * spec_.head_dim},
                 .init = Init::ones,
                 .sharding = TensorSharding::rows,
                 .row_blocks = {{weights * spec_.head_dim, static_cast<int>(weights)}}});
    }
  projection_.declare(table);
}

void Attention::bind(const ParameterStore& parameters) {
  qkv_.bind(parameters);
  projection_.bind(parameters);
  if (spec_.qk_norm == QkNorm::none) return;
  q_norm_ = parameters[name_ + "q_norm/weight"];
  k_norm_ = parameters[name_ + "k_norm/weight"];
}

Attention::Activations Attention::take(Arena& arena, const LayerSizes& sizes) const {
  const std::int64_t s = sizes.sequence, b = sizes.micro_batch;
  Activations a;
  a.qkv = arena.take(sizes.precision.activations, {s, b, qkv_.local_out(sizes)});
  if (spec_.qk_norm != QkNorm::none) {
    const std::int64_t heads = local_heads(sizes) + local_kv_heads(sizes), T = sizes.tokens();
    const bool whole = spec_.qk_norm == QkNorm::width;
    a.qk_in = arena.take(sizes.precision.activations, {s, b, heads * spec_.head_dim});
    a.qk_rstd = arena.take(sizes.statistics(), {T, whole ? 2 : heads});
    if (whole) a.qk_sums = arena.take(sizes.statistics(), {T, 2});
  }
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

void Attention::normalize(const LayerContext& context, const Activations& saved) const {
  if (spec_.qk_norm == QkNorm::none) return;
  const std::int64_t heads = local_heads(context), kv_heads = local_kv_heads(context);
  // A key head on several tensor ranks counts as often in the sums of squares as in the width of k
  // that the norm derives from that of q. Its gradients are terms of one sum, as norms want them.
  if (saved.qk_sums) {
    context.backend.qk_norm_sums(
        {.qkv = saved.qkv, .sums = saved.qk_sums, .heads = heads, .kv_heads = kv_heads});
    context.tensor.all_reduce(saved.qk_sums.data, saved.qk_sums.size(), saved.qk_sums.dtype,
                              comm::Reduce::sum);
  }
  context.backend.qk_norm_forward({.qkv = saved.qkv,
                                   .kept = saved.qk_in,
                                   .q_weight = q_norm_.weight,
                                   .k_weight = k_norm_.weight,
                                   .rstd = saved.qk_rstd,
                                   .sums = saved.qk_sums,
                                   .heads = heads,
                                   .kv_heads = kv_heads,
                                   .width = norm_width(),
                                   .eps = spec_.qk_norm_eps});
}

void Attention::normalize_backward(const LayerContext& context, const Activations& saved,
                                   const Tensor& dqkv) const {
  if (spec_.qk_norm == QkNorm::none) return;
  const std::int64_t heads = local_heads(context), kv_heads = local_kv_heads(context);
  if (saved.qk_sums) {
    context.backend.qk_norm_sums({.qkv = dqkv,
                                  .sums = saved.qk_sums,
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .kept = saved.qk_in,
                                  .q_weight = q_norm_.weight,
                                  .k_weight = k_norm_.weight,
                                  .rstd = saved.qk_rstd});
    context.tensor.all_reduce(saved.qk_sums.data, saved.qk_sums.size(), saved.qk_sums.dtype,
                              comm::Reduce::sum);
  }
  context.backend.qk_norm_backward({.dqkv = dqkv,
                                    .kept = saved.qk_in,
                                    .q_weight = q_norm_.weight,
                                    .k_weight = k_norm_.weight,
                                    .rstd = saved.qk_rstd,
                                    .sums = saved.qk_sums,
                                    .dq_weight = q_norm_.gradient,
                                    .dk_weight = k_norm_.gradient,
                                    .heads = heads,
                                    .kv_heads = kv_heads,
                                    .width = norm_width()});
}

void Attention::rotate(const LayerContext& context, const Tensor& qkv, std::int64_t first_position,
                       const std::int32_t* positions, bool inverse) const {
  if (!spec_.rotary) return;
  context.backend.rotary({.qkv = qkv,
                          .table = context.rotary,
                          .heads = local_heads(context),
                          .kv_heads = local_kv_heads(context),
                          .first_position = first_position,
                          .positions = positions,
                          .inverse = inverse});
}

void Attention::scale_queries(const LayerContext& context, const Tensor& qkv) const {
  if (spec_.query_scale == 1.0) return;
  const std::int64_t width = inner_width(context);
  context.backend.scaled_copy({.x = qkv,
                               .out = qkv,
                               .rows = qkv.size() / width,
                               .columns = heads_width(context),
                               .x_stride = width,
                               .out_stride = width,
                               .factor = spec_.query_scale});
}

void Attention::forward(const LayerContext& context, const PassInfo& pass, const Tensor& x,
                        const Activations& saved, const Tensor& y) const {
  qkv_.forward(context, x, saved.qkv, saved.qkv_in);
  normalize(context, saved);
  rotate(context, saved.qkv, /*first_position=*/0, pass.positions, /*inverse=*/false);
  scale_queries(context, saved.qkv);
  const Tensor attn_out = projection_.with_input_amax(context, saved.attn_out);
  context.backend.attention_forward(
      {.qkv = saved.qkv,
       .out = attn_out,
       .lse = saved.lse,
       .heads = local_heads(context),
       .first_head = context.tensor.rank() * local_heads(context),
       .dropout = pass.dropout(spec_.dropout, layer_, DropoutSite::attention),
       .causal = spec_.causal,
       .document_start = pass.document_start,
       .lengths = pass.lengths,
       .kv_heads = local_kv_heads(context)});
  projection_.forward(context, attn_out, y, saved.projection_in);
}

void Attention::forward_cached(const LayerContext& context, const Tensor& x,
                               const Activations& saved, const CachedTokens& tokens,
                               const Tensor& y) const {
  qkv_.forward(context, x, saved.qkv);
  attend_cached(context, saved, tokens);
  projection_.forward(context, saved.attn_out, y);
}

void Attention::decode(const LayerContext& context, const kernels::DecodeNorm& norm,
                       const Activations& saved, const CachedTokens& tokens,
                       const Tensor& stream) const {
  context.backend.decode_linear({.x = as_rows(stream),
                                 .weight = qkv_.weight().weight,
                                 .y = as_rows(saved.qkv),
                                 .norm = norm,
                                 .bias = qkv_.bias().weight});
  attend_cached(context, saved, tokens);
  context.backend.decode_linear({.x = as_rows(saved.attn_out),
                                 .weight = projection_.weight().weight,
                                 .y = as_rows(stream),
                                 .bias = projection_.bias().weight,
                                 .residual = as_rows(stream)});
}

void Attention::attend_cached(const LayerContext& context, const Activations& saved,
                              const CachedTokens& tokens) const {
  TRIREME_CHECK(spec_.causal, "attention that sees later tokens has no cache");
  const std::int64_t heads = local_heads(context), kv_heads = local_kv_heads(context);
  normalize(context, saved);
  rotate(context, saved.qkv, /*first_position=*/0, tokens.rows.positions, /*inverse=*/false);
  scale_queries(context, saved.qkv);
  const auto attend_paged = [&](std::int64_t first, std::int64_t count) {
    context.backend.attention_paged(
        {.qkv = as_rows(saved.qkv.rows(first, count)),
         .cache = tokens.cache,
         .rows = {.lines = tokens.rows.lines + first, .positions = tokens.rows.positions + first},
         .out = as_rows(saved.attn_out.rows(first, count)),
         .heads = heads,
         .kv_heads = kv_heads,
         .append = tokens.chunks.empty(),
         .window = spec_.window});
  };
  const auto attend_fresh = [&](std::int64_t first, std::int64_t count) {
    context.backend.attention_forward(
        {.qkv = saved.qkv.rows(first, count),
         .out = saved.attn_out.rows(first, count),
         .lse = front(saved.lse, {1, heads, count}),
         .heads = heads,
         .document_start = tokens.fresh_starts ? tokens.fresh_starts + first : nullptr,
         .kv_heads = kv_heads});
  };
  if (tokens.chunks.empty()) return attend_paged(0, context.tokens());
  context.backend.cache_append({.qkv = as_rows(saved.qkv),
                                .cache = tokens.cache,
                                .rows = tokens.rows,
                                .heads = heads,
                                .kv_heads = kv_heads});
  // Chunks of a kind that follow each other are computed together.
  std::int64_t first = 0, count = 0;
  for (auto chunk = tokens.chunks.begin(); chunk != tokens.chunks.end(); ++chunk) {
    count += chunk->tokens;
    const auto next = std::next(chunk);
    if (next != tokens.chunks.end() && next->fresh() == chunk->fresh()) continue;
    if (chunk->fresh())
      attend_fresh(first, count);
    else
      attend_paged(first, count);
    first += count;
    count = 0;
  }
}

Tensor Attention::backward(const LayerContext& context, const LayerWorkspace& workspace,
                           const PassInfo& pass, const Tensor& dy, const Activations& saved,
                           bool add_bias, const DeferredGradients* deferred,
                           const std::function<void()>& meanwhile) const {
  const Tensor complete = projection_.complete_gradient(context, dy, workspace.hidden, meanwhile);
  projection_.weight_gradient(context, saved.attn_out, dy, complete, deferred != nullptr,
                              add_bias ? BiasGradient::separate : BiasGradient::elsewhere,
                              saved.projection_in);
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
       .lengths = pass.lengths,
       .kv_heads = local_kv_heads(context)});
  scale_queries(context, dqkv);
  rotate(context, dqkv, /*first_position=*/0, pass.positions, /*inverse=*/true);
  normalize_backward(context, saved, dqkv);
  qkv_.input_gradient(context, dqkv, workspace.hidden, /*add_bias=*/true);
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
