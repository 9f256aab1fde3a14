#include "model/families/registry.hpp"

#include <fmt/format.h>

namespace trireme::model {
namespace {

/// Trireme's name of a part of a layer and Hugging Face's, which may hold its rows in several
/// tensors.
struct LlamaPart {
  const char* ours;
  std::vector<const char*> theirs;
};

const std::vector<LlamaPart>& layer_parts() {
  static const std::vector<LlamaPart> parts = {
      {"norm1", {"input_layernorm"}},
      {"norm2", {"post_attention_layernorm"}},
      {"output_norm1", {"post_attention_layernorm"}},
      {"output_norm2", {"post_feedforward_layernorm"}},
      {"attention/qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
      {"attention/q_norm", {"self_attn.q_norm"}},
      {"attention/k_norm", {"self_attn.k_norm"}},
      {"attention/projection", {"self_attn.o_proj"}},
      {"mlp/gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
      {"mlp/down", {"mlp.down_proj"}}};
  return parts;
}

RotarySpec rotary_spec(const deck::Position& position) {
  RotarySpec rotary;
  rotary.theta = position.theta.value();
  rotary.scaling = position.scaling.value();
  if (rotary.scaling == PositionScaling::none) return rotary;
  rotary.factor = position.factor.value();
  if (position.original) rotary.original = static_cast<double>(*position.original);
  rotary.low = position.low.value_or(rotary.low);
  rotary.high = position.high.value_or(rotary.high);
  return rotary;
}

}  // namespace

LlamaConfig llama_config(const deck::Deck& deck, const Vocabulary& vocabulary) {
  const deck::Model& model = deck.model;
  return {.layers = model.layers,
          .hidden = model.hidden,
          .heads = model.heads,
          .kv_heads = model.kv_heads.value(),
          .head_dim = model.head_dim.value(),
          .ffn = model.ffn,
          .sequence = model.sequence,
          .positions = model.positions,
          .vocab = vocabulary.size,
          .activation = std::string(name_of(model.activation.value())),
          .norm_placement = model.norm_placement.value(),
          .qk_norm = model.qk_norm.value(),
          .qkv_bias = model.bias.value() == deck::LinearBias::qkv,
          .window = model.window.value_or(0),
          .rotary = rotary_spec(model.position),
          .tie_embeddings = model.tie_embeddings,
          .attention_dropout = model.dropout.attention,
          .hidden_dropout = model.dropout.hidden,
          .init = init_spec(model),
          .eps = model.layernorm_eps,
          .documents = {.reset_positions = deck.data.reset_positions,
                        .reset_attention = deck.data.reset_attention,
                        .eod = vocabulary.eod},
          .seed = static_cast<std::uint64_t>(deck.run.seed)};
}

ModelSpec llama_spec(const LlamaConfig& config) {
  const NormSpec norm{.kind = "rmsnorm", .eps = config.eps};
  const BlockSpec block{.norm = norm,
                        .norm_placement = config.norm_placement,
                        .attention = {.heads = config.heads,
                                      .kv_heads = config.kv_heads,
                                      .head_dim = config.head_dim,
                                      .qkv_bias = config.qkv_bias,
                                      .output_bias = false,
                                      .qk_norm = config.qk_norm,
                                      .qk_norm_eps = config.eps,
                                      .rotary = true,
                                      .window = config.window,
                                      .dropout = config.attention_dropout},
                        .mlp = {.kind = config.activation, .width = config.ffn},
                        .dropout = config.hidden_dropout};
  return {.hidden = config.hidden,
          .sequence = config.sequence,
          .vocab = config.vocab,
          .embedding = {.position = PositionKind::rotary,
                        .positions = config.positions,
                        .rotary = config.rotary,
                        .norm = {},
                        .dropout = config.hidden_dropout},
          .blocks = std::vector<BlockSpec>(static_cast<std::size_t>(config.layers), block),
          .head = {.norm = norm, .tied = config.tie_embeddings},
          .documents = config.documents,
          .init = config.init,
          .seed = config.seed};
}

namespace {

/// Keys that a query of a sequence of `s` attends to, on average.
double mean_keys(const AttentionSpec& attention, double s) {
  const double w = static_cast<double>(attention.window);
  return w > 0 && w < s ? w - w * w / (2 * s) : s / 2;
}

}  // namespace

double llama_flops_per_token(const ModelSpec& spec) {
  const double h = static_cast<double>(spec.hidden), s = static_cast<double>(spec.sequence);
  double flops = 6 * h * static_cast<double>(spec.vocab);
  for (const BlockSpec& block : spec.blocks) {
    const AttentionSpec& attention = block.attention;
    const double q = static_cast<double>(attention.heads * attention.head_dim);
    const double k = static_cast<double>(attention.kv_heads * attention.head_dim);
    flops += 6 * h * (2 * q + 2 * k + 3 * static_cast<double>(block.mlp.width)) +
             12 * mean_keys(attention, s) * q;
  }
  return flops;
}

std::vector<std::string> llama_hugging_face_names(const Parameter& parameter) {
  const std::string& name = parameter.name;
  if (name == "embedding/word") return {"model.embed_tokens.weight"};
  if (name == "final_norm/weight") return {"model.norm.weight"};
  if (name == "head/weight") return {"lm_head.weight"};
  const std::string layer = fmt::format("layers/{}/", parameter.layer);
  for (const LlamaPart& part : layer_parts())
    for (const char* kind : {"weight", "bias"}) {
      if (name != fmt::format("{}{}/{}", layer, part.ours, kind)) continue;
      std::vector<std::string> names;
      for (const char* theirs : part.theirs)
        names.push_back(fmt::format("model.layers.{}.{}.{}", parameter.layer, theirs, kind));
      return names;
    }
  return {};
}

Family llama_family() {
  return {.id = deck::Family::llama,
          .causal = true,
          .spec =
              [](const deck::Deck& deck, const Vocabulary& vocabulary) {
                return llama_spec(llama_config(deck, vocabulary));
              },
          .flops_per_token = &llama_flops_per_token,
          .flops_formula =
              "6 for each weight of a matrix but the input embedding, and 6 l s q with q = heads "
              "head_dim: forward and backward, causal attention as half, no recomputation",
          .hugging_face_names = &llama_hugging_face_names};
}

}  // namespace trireme::model
