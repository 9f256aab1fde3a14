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
    if (block.norm_placement != NormPlacement::pre)
      throw DeckError("the model's {} asks for norms after its sublayers, which are not built",
                      where);
    require_kind(mlp_kinds().names(), "MLP", block.mlp.kind, where);
  }
  if (spec.embedding.position != PositionKind::learned)
    throw DeckError("the model asks for rotary positions, which are not built");
  if (spec.embedding.token_types > 0)
    throw DeckError("the model asks for {} token types, whose embedding is not built",
                    spec.embedding.token_types);
  if (spec.embedding.norm) require_norm(*spec.embedding.norm, "embedding");
  require_norm(spec.head.norm, "head");
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
