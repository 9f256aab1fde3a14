// BERT: Devlin et al., "BERT: Pre-training of deep bidirectional transformers" (2019); with norms
// before the sublayers that of Megatron-LM, Shoeybi et al. (2019), section 5.3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/families/registry.hpp"
#include "model/parameters/table.hpp"
#include "model/spec.hpp"

namespace trireme::model {

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

}  // namespace trireme::model
