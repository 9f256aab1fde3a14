#include "model/spec.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"

namespace trireme::model {
namespace {

void require_kind(const std::vector<std::string>& built, const char* layer, const std::string& kind,
                  const std::string& where) {
  if (std::ranges::find(built, kind) == built.end())
    throw DeckError("the model's {} asks for the {} '{}', which is not built (built: {})", where,
                    layer, kind, fmt::join(built, ", "));
}

void require_norm(const NormSpec& norm, const std::string& where) {
  require_kind(norm_kinds().names(), "norm", norm.kind, where);
}

void require_attention(const AttentionSpec& attention, const std::string& where) {
  if (attention.kv_heads < 1 || attention.heads % attention.kv_heads != 0)
    throw DeckError("the model's {} asks for {} key/value heads of {} query heads: give a divisor",
                    where, attention.kv_heads, attention.heads);
  if (attention.window > 0 && !attention.causal)
    throw DeckError("the model's {} asks for a sliding window of attention to later tokens", where);
  if (attention.rotary && attention.head_dim % 2 != 0)
    throw DeckError("the model's {} rotates heads of {}, which have no pairs", where,
                    attention.head_dim);
}

/// Norms of sublayers' outputs are built for sublayers without bias and dropout.
void require_output_norms(const ModelSpec& spec, int layer) {
  const BlockSpec& block = spec.blocks[layer];
  const auto mlp = make_mlp(block.mlp, {.hidden = spec.hidden});
  if (block.dropout > 0.0 || block.attention.output_bias || mlp->output().has_bias())
    throw DeckError(
        "the model's layer {} asks for norms of sublayers' outputs with dropout or a bias, which "
        "is not built",
        layer);
}

/// Throws DeckError unless all rotated heads have one size: they share one table.
void require_rotary(const ModelSpec& spec) {
  const bool rotary = spec.embedding.position == PositionKind::rotary;
  std::int64_t head_dim = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (!block.attention.rotary) continue;
    if (!rotary) throw DeckError("the model rotates queries, but its positions are learned");
    if (head_dim != 0 && head_dim != block.attention.head_dim)
      throw DeckError("the model rotates heads of {} and of {} elements, which is not built",
                      head_dim, block.attention.head_dim);
    head_dim = block.attention.head_dim;
  }
}

}  // namespace

double InitSpec::output_deviation(int layer, std::int64_t layers) const {
  switch (outputs) {
    case InitScheme::scaled:
      return deviation / std::sqrt(2.0 * static_cast<double>(layers));
    case InitScheme::depth:
      return deviation / std::sqrt(2.0) / std::sqrt(layer + 1.0);
    case InitScheme::normal:
      return deviation;
  }
  throw InternalError("unknown model.init");
}

InitSpec init_spec(const deck::Model& model) {
  return {.deviation = model.init_std,
          .outputs = model.init,
          .cutoff = model.init_cutoff.value_or(0.0)};
}

bool ModelSpec::has_dropout() const {
  return embedding.dropout > 0.0 || std::ranges::any_of(blocks, [](const BlockSpec& block) {
           return block.dropout > 0.0 || block.attention.dropout > 0.0;
         });
}

void require_implemented(const ModelSpec& spec) {
  for (std::int64_t i = 0; i < spec.layers(); ++i) {
    const BlockSpec& block = spec.blocks[i];
    const std::string where = fmt::format("layer {}", i);
    require_norm(block.norm, where);
    require_attention(block.attention, where);
    require_kind(mlp_kinds().names(), "MLP", block.mlp.kind, where);
    if (block.norm_placement == NormPlacement::output)
      require_output_norms(spec, static_cast<int>(i));
  }
  require_rotary(spec);
  for (const BlockSpec& block : spec.blocks)
    if (block.attention.window != spec.window())
      throw DeckError("the model asks for different windows of attention, which is not built");
  if (spec.embedding.norm && spec.embedding.sum_norm)
    throw DeckError(
        "the model asks for norms of its token embedding and of the sum of its "
        "embeddings: give one");
  if (spec.padding && spec.documents.reset_attention)
    throw DeckError(
        "the model asks for attention within documents of padded samples, which is not "
        "built");
  for (const auto& norm : {spec.embedding.norm, spec.embedding.sum_norm})
    if (norm) require_norm(*norm, "embedding");
  for (const auto& norm : {spec.head.norm, spec.head.transform})
    if (norm) require_norm(*norm, "head");
}

std::vector<Parameter> declare_parameters(const ModelSpec& spec) {
  require_implemented(spec);
  ParameterTableBuilder table;
  table.at(StagePlacement::first_stage);
  Embedding(spec).declare(table);
  for (int layer = 0; layer < spec.layers(); ++layer) {
    table.at(StagePlacement::layer, layer);
    TransformerBlock(spec, layer).declare(table);
  }
  table.at(StagePlacement::last_stage);
  Head(spec).declare(table);
  std::vector<Parameter> parameters = table.take();
  for (Parameter& parameter : parameters) parameter.init_cutoff = spec.init.cutoff;
  return parameters;
}

}  // namespace trireme::model
