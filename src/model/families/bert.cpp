#include "model/families/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::model {
namespace {

/// Trireme's name of a module and Hugging Face's: within a layer, or of the whole model.
struct Module {
  const char* ours;
  const char* theirs;
};
constexpr Module kLayerModules[] = {{"norm1", "attention.output.LayerNorm"},
                                    {"attention/projection", "attention.output.dense"},
                                    {"norm2", "output.LayerNorm"},
                                    {"mlp/up", "intermediate.dense"},
                                    {"mlp/down", "output.dense"}};
constexpr Module kModelModules[] = {{"embedding/norm", "bert.embeddings.LayerNorm"},
                                    {"final_norm", "bert.encoder.ln"},
                                    {"masked_lm/dense", "cls.predictions.transform.dense"},
                                    {"masked_lm/norm", "cls.predictions.transform.LayerNorm"},
                                    {"pooler", "bert.pooler.dense"},
                                    {"sentence", "cls.seq_relationship"}};
constexpr Module kTensors[] = {
    {"embedding/word", "bert.embeddings.word_embeddings.weight"},
    {"embedding/position", "bert.embeddings.position_embeddings.weight"},
    {"embedding/token_type", "bert.embeddings.token_type_embeddings.weight"},
    {"head/weight", "cls.predictions.decoder.weight"},
    {"head/bias", "cls.predictions.bias"}};

}  // namespace

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
          .init = config.init,
          .seed = config.seed};
}

double bert_flops_per_token(const ModelSpec& spec) {
  const double h = static_cast<double>(spec.hidden), s = static_cast<double>(spec.sequence);
  double flops = 6 * (h * h + h * static_cast<double>(spec.vocab));
  for (const BlockSpec& block : spec.blocks)
    flops += 6 * (4 * h * h + 2 * h * static_cast<double>(block.mlp.width)) + 12 * s * h;
  return flops;
}

namespace {

/// The maximum number of tokens of a sample with a label; 0, all, where the deck does not say.
std::int64_t max_labels(const deck::Deck& deck) {
  const deck::BertData& data = deck.data.bert;
  const std::int64_t sequence = deck.model.sequence;
  if (data.max_predictions) return std::min(*data.max_predictions, sequence);
  if (!data.mask_probability) return 0;
  return static_cast<std::int64_t>(
      std::ceil(*data.mask_probability * static_cast<double>(sequence)));
}

}  // namespace

BertConfig bert_config(const deck::Deck& deck, const Vocabulary& vocabulary) {
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
          .tie_embeddings = model.tie_embeddings,
          .binary_head = model.bert.binary_head.value(),
          .max_labels = max_labels(deck),
          .post_norm = model.bert.post_norm.value(),
          .seed = static_cast<std::uint64_t>(deck.run.seed)};
}

std::vector<std::string> bert_hugging_face_names(const Parameter& parameter) {
  const std::string& name = parameter.name;
  for (const Module& tensor : kTensors)
    if (name == tensor.ours) return {tensor.theirs};
  const std::size_t last = name.rfind('/') + 1;
  const std::string kind = name.substr(last);
  for (const Module& module : kModelModules)
    if (name == fmt::format("{}/{}", module.ours, kind))
      return {fmt::format("{}.{}", module.theirs, kind)};
  const std::string ours = fmt::format("layers/{}/", parameter.layer);
  const std::string theirs = fmt::format("bert.encoder.layer.{}.", parameter.layer);
  for (const Module& module : kLayerModules)
    if (name == fmt::format("{}{}/{}", ours, module.ours, kind))
      return {fmt::format("{}{}.{}", theirs, module.theirs, kind)};
  std::vector<std::string> names;
  if (name == fmt::format("{}attention/qkv/{}", ours, kind))
    for (const char* part : {"query", "key", "value"})
      names.push_back(fmt::format("{}attention.self.{}.{}", theirs, part, kind));
  return names;
}

Family bert_family() {
  return {
      .id = deck::Family::bert,
      .causal = false,
      .spec = [](const deck::Deck& deck,
                 const Vocabulary& vocabulary) { return bert_spec(bert_config(deck, vocabulary)); },
      .flops_per_token = &bert_flops_per_token,
      .flops_formula =
          "72 l h^2 (1 + s / (6 h) + V / (12 l h) + 1 / (12 l)): forward and backward, full "
          "attention, the head as if for all tokens, no recomputation",
      .hugging_face_names = &bert_hugging_face_names};
}

}  // namespace trireme::model
