#include "model/families/registry.hpp"

#include <array>

#include "core/error.hpp"
#include "model/families/bert.hpp"
#include "model/families/gpt2.hpp"
#include "model/families/llama.hpp"

namespace trireme::model {

const Family& family_of(const deck::Deck& deck) {
  static const auto families =
      std::to_array<Family>({gpt2_family(), bert_family(), llama_family()});
  for (const Family& family : families)
    if (family.id == deck.model.family) return family;
  throw DeckError("model.family = {} is not built", name_of(deck.model.family));
}

ModelSpec make_spec(const deck::Deck& deck, const Vocabulary& vocabulary) {
  ModelSpec spec = family_of(deck).spec(deck, vocabulary);
  require_implemented(spec);
  return spec;
}

double flops_per_token(const deck::Deck& deck, std::int64_t vocab) {
  return family_of(deck).flops_per_token(make_spec(deck, {.size = vocab, .eod = std::nullopt}));
}

}  // namespace trireme::model
