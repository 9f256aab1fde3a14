#include "model/spec.hpp"

#include <fmt/ranges.h>

#include "core/error.hpp"
#include "model/layers/registry.hpp"

namespace trireme::model {
namespace {

void require_norm(const NormSpec& norm, const std::string& where) {
  if (!has_norm(norm.kind))
    throw DeckError("the model's {} asks for the norm '{}', which is not built (built: {})", where,
                    norm.kind, fmt::join(norm_kinds(), ", "));
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
    if (!has_mlp(block.mlp.kind))
      throw DeckError("the model's {} asks for the MLP '{}', which is not built (built: {})", where,
                      block.mlp.kind, fmt::join(mlp_kinds(), ", "));
  }
  if (spec.embedding.position != PositionKind::learned)
    throw DeckError("the model asks for rotary positions, which are not built");
  if (spec.embedding.token_types > 0)
    throw DeckError("the model asks for {} token types, whose embedding is not built",
                    spec.embedding.token_types);
  if (spec.embedding.norm) require_norm(*spec.embedding.norm, "embedding");
  require_norm(spec.head.norm, "head");
}

}  // namespace trireme::model
