// The shape of a model, as the layers need it.
#pragma once

#include <cstdint>
#include <optional>

namespace trireme::model {

/// A GPT's hyper-parameters. Taken from the deck's `model` section, with the vocabulary resolved.
struct ModelConfig {
  std::int64_t layers = 1;
  std::int64_t hidden = 1;
  std::int64_t heads = 1;
  std::int64_t ffn = 4;
  std::int64_t sequence = 1;   ///< tokens per sample
  std::int64_t positions = 1;  ///< rows of the position embedding, at least `sequence`
  std::int64_t vocab = 1;
  double attention_dropout = 0.0;
  double hidden_dropout = 0.0;
  double init_std = 0.02;
  double layernorm_eps = 1e-5;
  bool embedding_layernorm = false;
  bool reset_positions = false;     ///< positions start again behind each `eod`
  bool reset_attention = false;     ///< attention stays within a document
  std::optional<std::int32_t> eod;  ///< ends a document; given where one of the two is true
  std::uint64_t seed = 1234;        ///< of the initial weights and of dropout

  std::int64_t head_dim() const { return hidden / heads; }
};

}  // namespace trireme::model
