// The last stage's part: final layer normalisation, tied output projection, vocabulary-parallel
// cross entropy.
#pragma once

#include <optional>

#include "model/transformer_layer.hpp"

namespace trireme::model {

/// From the residual stream to the loss.
class Head {
 public:
  /// What the head keeps for its backward pass. V is the vocabulary padded to a multiple of the
  /// tensor ranks.
  struct Activations {
    Tensor mean, rstd;        ///< [T]
    Tensor norm;              ///< [T, h]
    Tensor logits;            ///< [T, V / t]; the backward pass writes their gradient over them
    Tensor max, sum, target;  ///< [T], of the softmax, reduced over the tensor group
    Tensor local_max;         ///< [T], of this rank's columns; only with several tensor ranks
    static Activations take(Arena& arena, const LayerSizes& sizes);
  };

  /// `parameters` must hold the last stage's and outlive this.
  explicit Head(const ParameterStore& parameters);

  /// Writes the logits of stream [s, b, h] into saved.logits.
  void logits(const LayerContext& context, const Tensor& stream, const Activations& saved) const;

  /// logits(), then adds the summed loss of the labels that count to `loss` [1] f64. labels [T], -1
  /// ignored. With a `scale`, the gradient of `scale` times that loss is written over the logits,
  /// where backward() expects it. The loss is the same on every rank of the tensor group.
  /// Collective over it.
  void forward(const LayerContext& context, const Tensor& stream, const std::int32_t* labels,
               std::optional<double> scale, const Activations& saved, const Tensor& loss) const;

  /// Writes the gradient of the scaled loss with respect to stream into `gradient` [s, b, h] and
  /// adds the weight gradients, after forward() with a scale. `scratch` [s, b, h]. Collective over
  /// the tensor group.
  void backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                const Tensor& gradient, const Tensor& scratch) const;

 private:
  WeightGradient norm_weight_, norm_bias_, word_;
};

}  // namespace trireme::model
