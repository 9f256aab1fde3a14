// The families of models. A family is a file of this folder, its functions here, and a row in
// registry.cpp; outside this folder nothing branches on the family.
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

// ---- GPT-2: Radford et al., "Language models are unsupervised multitask learners" (2019).

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

// ---- BERT: Devlin et al., "BERT: Pre-training of deep bidirectional transformers" (2019); with
// norms before the sublayers that of Megatron-LM, Shoeybi et al. (2019), section 5.3.

/// The hyper-parameters of a BERT.
struct BertConfig {
  std::int64_t layers = 1;
  std::int64_t hidden = 1;
  std::int64_t heads = 1;
  std::int64_t ffn = 4;
  std::int64_t sequence = 1;   ///< tokens per sample, padding included
  std::int64_t positions = 1;  ///< rows of the position embedding, at least `sequence`
  std::int64_t vocab = 1;
  std::int64_t token_types = 2;
  double attention_dropout = 0.0;
  double hidden_dropout = 0.0;
  InitSpec init = {.outputs = InitScheme::normal};
  double layernorm_eps = 1e-12;
  bool tie_embeddings = true;
  bool binary_head = true;      ///< the classifier of sentence pairs
  std::int64_t max_labels = 0;  ///< maximum number of labels of a sample; 0: all
  /// Norms after the residual sums and after the embeddings, as in Devlin et al.; else before the
  /// sublayers and after the last block.
  bool post_norm = false;
  std::uint64_t seed = 1234;  ///< of the initial weights and of dropout
};

/// The model: full attention that skips padding, exact GELU, token types, the masked-LM head with
/// its dense layer and norm, an output projection with bias, and the binary head.
ModelSpec bert_spec(const BertConfig& config);

/// Floating-point operations per token of one training iteration of such a model, forward and
/// backward: 6 for each weight of a matrix and of the masked-LM head, as if it read every token,
/// and 12 s h per layer for attention to all s tokens. Recomputation and padding count as computed.
double bert_flops_per_token(const ModelSpec& spec);

/// The hyper-parameters that the deck gives, with this vocabulary.
BertConfig bert_config(const deck::Deck& deck, const Vocabulary& vocabulary);

/// The names that BertForPreTraining of Hugging Face's transformers has for a parameter: three for
/// the fused weights and biases of q, k and v. None where it has no counterpart, as for the norms
/// of a model with norms before the sublayers.
std::vector<std::string> bert_hugging_face_names(const Parameter& parameter);

/// The row of the registry.
Family bert_family();

// ---- the dense family that Llama began: RMS norms, rotary positions, gated MLPs, grouped heads.
// Its options make Llama 2 and 3, Qwen2.5 and Qwen3, Mistral, OLMo-2 and SmolLM2.

/// The hyper-parameters of a Llama: the deck's `model` section, with the vocabulary resolved.
struct LlamaConfig {
  std::int64_t layers = 1;
  std::int64_t hidden = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 2;
  std::int64_t ffn = 4;
  std::int64_t sequence = 1;   ///< tokens per sample
  std::int64_t positions = 1;  ///< the longest context, at least `sequence`
  std::int64_t vocab = 1;
  std::string activation = "swiglu";  ///< one of mlp_kinds()
  NormPlacement norm_placement = NormPlacement::pre;
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false;
  std::int64_t window = 0;  ///< AttentionSpec::window
  RotarySpec rotary;
  bool tie_embeddings = true;
  double attention_dropout = 0.0;
  double hidden_dropout = 0.0;
  InitSpec init;
  double eps = 1e-5;  ///< of all RMS norms
  DocumentSpec documents;
  std::uint64_t seed = 1234;  ///< of the initial weights and of dropout
};

/// The model. Weights that end a sublayer are initialized with init_std / sqrt(2 layers).
ModelSpec llama_spec(const LlamaConfig& config);

/// What the deck says, with this vocabulary.
LlamaConfig llama_config(const deck::Deck& deck, const Vocabulary& vocabulary);

/// Floating-point operations per token of one training iteration, forward and backward: 6 for each
/// weight of a matrix but the input embedding, and 6 s q per layer for causal attention, q = heads
/// head_dim.
double llama_flops_per_token(const ModelSpec& spec);

/// The names that LlamaForCausalLM and its relatives in Hugging Face's transformers have for a
/// parameter: three for the fused weights and biases of q, k and v, two for those of gate and up.
std::vector<std::string> llama_hugging_face_names(const Parameter& parameter);

/// The row of the registry.
Family llama_family();

}  // namespace trireme::model
