// The dense family that Llama began: RMS norms, rotary positions, gated MLPs, grouped heads. Its
// options make Llama 2 and 3, Qwen2.5 and Qwen3, Mistral, OLMo-2 and SmolLM2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/families/registry.hpp"
#include "model/parameters/table.hpp"
#include "model/spec.hpp"

namespace trireme::model {

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
