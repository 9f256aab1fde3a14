// The last stage's part: final layer normalisation, tied output projection, vocabulary-parallel
// cross entropy.
#pragma once

#include <optional>

#include "model/transformer_layer.hpp"

namespace trireme::model {

/// From the residual stream to the loss. Logits are the widest tensors of a model: they are worked
/// on for C tokens at a time, from the product to the weight gradient, and never kept.
class Head {
 public:
  /// What the head keeps for its backward pass, and its scratch memory. V is the vocabulary padded
  /// to a multiple of the tensor ranks, C LayerSizes::loss_tokens().
  struct Activations {
    Tensor mean, rstd;        ///< [U]
    Tensor norm;              ///< [T, h]
    Tensor gradient;          ///< [T, h], of norm: this rank's part
    Tensor logits;            ///< [C, V / t], then their gradient
    Tensor max, sum, target;  ///< [C], of the softmax, reduced over the tensor group
    Tensor local_max;         ///< [C], of this rank's columns; only with several tensor ranks
    /// Those of one micro-batch, from `arena`.
    static Activations take(Arena& arena, const LayerSizes& sizes);
  };

  /// `parameters` must hold the last stage's and outlive this.
  explicit Head(const ParameterStore& parameters);

  /// Writes the logits of stream [S, b, h], of at most C tokens, into saved.logits. Collective over
  /// the tensor group.
  void logits(const LayerContext& context, const Tensor& stream, const Activations& saved) const;

  /// Adds the summed loss of the labels that count to `loss` [1] f64. labels [T], -1 ignored. With
  /// a `scale`, backward() is to follow: what the gradient of `scale` times that loss needs of the
  /// logits is worked out, and that of the word embedding added. The loss is the same on every rank
  /// of the tensor group. Collective over it.
  void forward(const LayerContext& context, const Tensor& stream, const std::int32_t* labels,
               std::optional<double> scale, const Activations& saved, const Tensor& loss) const;

  /// Writes the gradient of the scaled loss with respect to stream into `gradient` [S, b, h] and
  /// adds those of the layer normalisation, as TransformerLayer::backward(), after forward() with a
  /// scale. Collective over the tensor group.
  void backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                const Tensor& gradient) const;

 private:
  /// Writes saved.norm, of all ranks' tokens.
  void normalize(const LayerContext& context, const Tensor& stream, const Activations& saved) const;
  /// From saved.norm to the loss and saved.gradient, which hold the same tokens.
  void add_loss(const LayerContext& context, const std::int32_t* labels,
                std::optional<double> scale, const Activations& saved, const Tensor& loss) const;

  WeightGradient norm_weight_, norm_bias_, word_;
};

}  // namespace trireme::model
