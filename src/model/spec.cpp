#include "model/spec.hpp"

#include <fmt/ranges.h>

#include <algorithm>

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
  if (attention.kv_heads != attention.heads)
    throw DeckError("the model's {} asks for {} key/value heads of {} query heads: give as many",
                    where, attention.kv_heads, attention.heads);
  if (!attention.qkv_bias || !attention.output_bias)
    throw DeckError("the model's {} asks for attention without biases, which is not built", where);
  if (attention.qk_norm != QkNorm::none)
    throw DeckError("the model's {} asks for norms of queries and keys, which are not built",
                    where);
}

}  // namespace

void require_implemented(const ModelSpec& spec) {
  for (std::int64_t i = 0; i < spec.layers(); ++i) {
    const BlockSpec& block = spec.blocks[i];
    const std::string where = fmt::format("layer {}", i);
    require_norm(block.norm, where);
    require_attention(block.attention, where);
    require_kind(mlp_kinds().names(), "MLP", block.mlp.kind, where);
  }
  if (spec.embedding.position != PositionKind::learned)
    throw DeckError("the model asks for rotary positions, which are not built");
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
  return table.take();
}

}  // namespace trireme::model
