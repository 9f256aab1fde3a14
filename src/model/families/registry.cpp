#include "model/families/registry.hpp"

#include <array>
#include <cmath>

#include "core/error.hpp"

namespace trireme::model {

const Family& family_of(const deck::Deck& deck) {
  static const auto families =
      std::to_array<Family>({gpt2_family(), bert_family(), llama_family()});
  for (const Family& family : families)
    if (family.id == deck.model.family) return family;
  throw DeckError("model.family = {} is not built", name_of(deck.model.family));
}

namespace {

/// Turns `spec` into the maximal update parametrization of a model that is `base` wide: its other
/// half, the learning rates of matrices, is plan::optimizer_config()'s. Source: Yang et al.,
/// "Tensor programs V" (2022), table 8.
void apply_mup(const deck::Model& model, ModelSpec& spec) {
  if (!model.mup.base) return;
  const double wider = static_cast<double>(model.hidden) / static_cast<double>(*model.mup.base);
  spec.init.embedding = spec.init.deviation;
  spec.init.deviation /= std::sqrt(wider);
  spec.head.logit_scale = 1.0 / wider;
  spec.embedding.scale = model.mup.embedding.value_or(1.0);
  // 1 / d of the paper, equal to 1 / sqrt(d) at the base's d.
  const auto head = static_cast<double>(model.head_size());
  const double base_head = static_cast<double>(model.mup.base_head.value_or(model.head_size()));
  for (BlockSpec& block : spec.blocks) block.attention.query_scale = std::sqrt(base_head / head);
}

}  // namespace

ModelSpec make_spec(const deck::Deck& deck, const Vocabulary& vocabulary) {
  ModelSpec spec = family_of(deck).spec(deck, vocabulary);
  spec.head.z_loss = deck.model.z_loss;
  apply_mup(deck.model, spec);
  require_implemented(spec);
  return spec;
}

double flops_per_token(const deck::Deck& deck, std::int64_t vocab) {
  return family_of(deck).flops_per_token(make_spec(deck, {.size = vocab, .eod = std::nullopt}));
}

}  // namespace trireme::model
