#include "model/families/registry.hpp"

#include <fmt/format.h>

#include "deck/model.hpp"

namespace trireme::model {
namespace {

/// Our name of a part and Hugging Face's: within a layer, or of the whole model.
struct Part {
  const char* ours;
  const char* theirs;
};
constexpr Part kLayerParts[] = {
    {"norm1", "ln_1"}, {"attention/qkv", "attn.c_attn"}, {"attention/projection", "attn.c_proj"},
    {"norm2", "ln_2"}, {"mlp/up", "mlp.c_fc"},           {"mlp/down", "mlp.c_proj"}};
constexpr Part kModelParts[] = {{"embedding/word", "wte.weight"},
                                {"embedding/position", "wpe.weight"},
                                {"final_norm/weight", "ln_f.weight"},
                                {"final_norm/bias", "ln_f.bias"}};

}  // namespace

Gpt2Config gpt2_config(const deck::Deck& deck, const Vocabulary& vocabulary) {
  const deck::Model& model = deck.model;
  return {.layers = model.layers,
          .hidden = model.hidden,
          .heads = model.heads,
          .ffn = model.ffn,
          .sequence = model.sequence,
          .positions = model.positions,
          .vocab = vocabulary.size,
          .attention_dropout = model.dropout.attention,
          .hidden_dropout = model.dropout.hidden,
          .init = init_spec(model),
          .layernorm_eps = model.layernorm_eps,
          .embedding_layernorm = model.embedding_layernorm,
          .reset_positions = deck.data.reset_positions,
          .reset_attention = deck.data.reset_attention,
          .eod = vocabulary.eod,
          .seed = static_cast<std::uint64_t>(deck.run.seed)};
}

ModelSpec gpt2_spec(const Gpt2Config& config) {
  const NormSpec norm{.kind = "layernorm", .eps = config.layernorm_eps};
  const BlockSpec block{.norm = norm,
                        .norm_placement = NormPlacement::pre,
                        .attention = {.heads = config.heads,
                                      .kv_heads = config.heads,
                                      .head_dim = config.hidden / config.heads,
                                      .dropout = config.attention_dropout},
                        .mlp = {.kind = "gelu", .width = config.ffn},
                        .dropout = config.hidden_dropout};
  return {.hidden = config.hidden,
          .sequence = config.sequence,
          .vocab = config.vocab,
          .embedding = {.position = PositionKind::learned,
                        .positions = config.positions,
                        .norm = config.embedding_layernorm ? std::optional(norm) : std::nullopt,
                        .dropout = config.hidden_dropout},
          .blocks = std::vector<BlockSpec>(static_cast<std::size_t>(config.layers), block),
          .head = {.norm = norm, .tied = true},
          .documents = {.reset_positions = config.reset_positions,
                        .reset_attention = config.reset_attention,
                        .eod = config.eod},
          .init = config.init,
          .seed = config.seed};
}

std::vector<std::string> gpt2_hugging_face_names(const Parameter& parameter) {
  const std::string& name = parameter.name;
  for (const Part& part : kModelParts)
    if (name == part.ours) return {part.theirs};
  const std::string layer = fmt::format("layers/{}/", parameter.layer);
  if (!name.starts_with(layer)) return {};
  for (const Part& part : kLayerParts)
    for (const char* kind : {"weight", "bias"})
      if (name == fmt::format("{}{}/{}", layer, part.ours, kind))
        return {fmt::format("h.{}.{}.{}", parameter.layer, part.theirs, kind)};
  return {};
}

Family gpt2_family() {
  return {
      .id = deck::Family::gpt,
      .causal = true,
      .spec = [](const deck::Deck& deck,
                 const Vocabulary& vocabulary) { return gpt2_spec(gpt2_config(deck, vocabulary)); },
      .flops_per_token =
          [](const ModelSpec& spec) {
            return deck::gpt_flops_per_token(spec.layers(), spec.hidden,
                                             spec.blocks.front().mlp.width, spec.sequence,
                                             spec.vocab);
          },
      .flops_formula =
          "72 l h^2 (1 + s / (12 h) + V / (12 l h)): forward and backward, causal attention as "
          "half, no recomputation",
      .hugging_face_names = &gpt2_hugging_face_names};
}

}  // namespace trireme::model
