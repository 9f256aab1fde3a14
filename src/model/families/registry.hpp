// The families of models. A family is a file of this folder and a row in registry.cpp; outside this
// folder nothing branches on the family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "model/parameters/table.hpp"
#include "model/spec.hpp"

namespace trireme::model {

/// Size of the vocabulary, and the id that ends a document where one is known.
struct Vocabulary {
  std::int64_t size = 0;
  std::optional<std::int32_t> eod;
};

/// What a family is.
struct Family {
  deck::Family id;
  /// Whether it predicts the token that follows, from documents and in texts that it continues; if
  /// not, tokens that are masked, from pairs of sentences.
  bool causal;
  /// The model that a deck describes.
  ModelSpec (*spec)(const deck::Deck& deck, const Vocabulary& vocabulary);
  /// Floating-point operations per token of one training iteration, forward and backward, without
  /// recomputation: by which speed is reported.
  double (*flops_per_token)(const ModelSpec& spec);
  /// That as a formula in l, h, s and V, and what it counts, for people.
  const char* flops_formula;
  /// The names of a parameter in Hugging Face's files, which may hold its rows in several tensors;
  /// none where they have no counterpart.
  std::vector<std::string> (*hugging_face_names)(const Parameter& parameter);
};

/// The family that the deck names. Throws DeckError where it is not built.
const Family& family_of(const deck::Deck& deck);

/// The model that the deck describes, with this vocabulary. Throws DeckError for a family that is
/// not built and for a spec that no layer implements: see require_implemented().
ModelSpec make_spec(const deck::Deck& deck, const Vocabulary& vocabulary);

/// Family::flops_per_token of the deck's model with a vocabulary of `vocab`.
double flops_per_token(const deck::Deck& deck, std::int64_t vocab);

}  // namespace trireme::model
