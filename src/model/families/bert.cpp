#include "model/families/bert.hpp"

#include <cmath>

namespace trireme::model {

ModelSpec bert_spec(const BertConfig& config) {
  const NormSpec norm{.kind = "layernorm", .eps = config.layernorm_eps};
  const auto where = [&](bool wanted) { return wanted ? std::optional(norm) : std::nullopt; };
  const BlockSpec block{
      .norm = norm,
      .norm_placement = config.post_norm ? NormPlacement::post : NormPlacement::pre,
      .attention = {.heads = config.heads,
                    .kv_heads = config.heads,
                    .head_dim = config.hidden / config.heads,
                    .causal = false,
                    .dropout = config.attention_dropout},
      .mlp = {.kind = "gelu-exact", .width = config.ffn},
      .dropout = config.hidden_dropout};
  const double deep = std::sqrt(2.0 * static_cast<double>(config.layers));
  return {.hidden = config.hidden,
          .sequence = config.sequence,
          .vocab = config.vocab,
          .embedding = {.position = PositionKind::learned,
                        .positions = config.positions,
                        .token_types = config.token_types,
                        .norm = {},
                        .sum_norm = where(config.post_norm),
                        .dropout = config.hidden_dropout},
          .blocks = std::vector<BlockSpec>(static_cast<std::size_t>(config.layers), block),
          .head = {.norm = where(!config.post_norm),
                   .tied = config.tie_embeddings,
                   .transform = norm,
                   .output_bias = true,
                   .sentence_classes = config.binary_head ? 2 : 0,
                   .max_labels = config.max_labels},
          .padding = true,
          .init_std = config.init_std,
          .output_init_std = config.deep_init ? config.init_std / deep : config.init_std,
          .seed = config.seed};
}

double bert_flops_per_token(const ModelSpec& spec) {
  const double h = static_cast<double>(spec.hidden), s = static_cast<double>(spec.sequence);
  double flops = 6 * (h * h + h * static_cast<double>(spec.vocab));
  for (const BlockSpec& block : spec.blocks)
    flops += 6 * (4 * h * h + 2 * h * static_cast<double>(block.mlp.width)) + 12 * s * h;
  return flops;
}

}  // namespace trireme::model
