// The first stage's part: word and position embeddings, split over tensor ranks by vocabulary.
#pragma once

#include "model/transformer_layer.hpp"

namespace trireme::model {

/// Word embedding, optional layer normalisation of it, position embedding, dropout.
class Embedding {
 public:
  /// What the embedding keeps for its backward pass; only with `embedding_layernorm`.
  struct Activations {
    Tensor words;       ///< [S, b, h] before the normalisation
    Tensor mean, rstd;  ///< [U]
    /// Those of one micro-batch, from `arena`.
    static Activations take(Arena& arena, const LayerSizes& sizes);
  };

  /// `parameters` must hold the first stage's and outlive this.
  Embedding(const ParameterStore& parameters, const ModelConfig& config);

  /// Tokens in the backend's memory.
  struct Tokens {
    const std::int32_t* ids = nullptr;        ///< [T], sequence-major
    const std::int32_t* positions = nullptr;  ///< [T]; null: first_position and on
    std::int64_t first_position = 0;
  };

  /// Writes output [S, b, h]. `scratch` [s, b, h] is used only where the stream is cut. Collective
  /// over the tensor group.
  void forward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
               const Activations& saved, const Tensor& output, const Tensor& scratch = {}) const;

  /// Adds the gradients of the embeddings, as TransformerLayer::backward(). `gradient` [S, b, h] of
  /// the output is overwritten; `scratch` [s, b, h]. Collective over the tensor group.
  void backward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                const Activations& saved, const Tensor& gradient, const Tensor& scratch) const;

 private:
  WeightGradient word_, position_, norm_weight_, norm_bias_;
};

}  // namespace trireme::model
