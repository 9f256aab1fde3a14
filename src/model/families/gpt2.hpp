// GPT-2: Radford et al., "Language models are unsupervised multitask learners" (2019).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/families/registry.hpp"
#include "model/parameters/table.hpp"

namespace trireme::model {

/// The hyper-parameters of a GPT-2: the deck's `model` section, with the vocabulary resolved.
struct Gpt2Config {
  std::int64_t layers = 1;
  std::int64_t hidden = 1;
  std::int64_t heads = 1;
  std::int64_t ffn = 4;
  std::int64_t sequence = 1;   ///< tokens per sample
  std::int64_t positions = 1;  ///< rows of the position embedding, at least `sequence`
  std::int64_t vocab = 1;
  double attention_dropout = 0.0;
  double hidden_dropout = 0.0;
  InitSpec init;
  double layernorm_eps = 1e-5;
  bool embedding_layernorm = false;
  bool reset_positions = false;     ///< positions start again after each `eod`
  bool reset_attention = false;     ///< attention stays within a document
  std::optional<std::int32_t> eod;  ///< ends a document; given where one of the two is true
  std::uint64_t seed = 1234;        ///< of the initial weights and of dropout
};

/// The model: pre-norm blocks with layer norms, fused qkv, tanh GELU, tied embeddings. Output
/// projections are initialized with init_std / sqrt(2 layers) (section 2.3).
ModelSpec gpt2_spec(const Gpt2Config& config);

/// What the deck says, with this vocabulary.
Gpt2Config gpt2_config(const deck::Deck& deck, const Vocabulary& vocabulary);

/// The name that Hugging Face's transformers has for a parameter, without the prefix
/// "transformer."; none where GPT-2 has no counterpart.
std::vector<std::string> gpt2_hugging_face_names(const Parameter& parameter);

/// The row of the registry.
Family gpt2_family();

}  // namespace trireme::model
