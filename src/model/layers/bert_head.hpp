// BERT's heads: the transform before the output projection of the masked LM, and the classifier of
// sentence pairs.
// Source: Devlin et al., "BERT" (2019), section 3.1; names as in Megatron-LM's BertLMHead and
// Pooler.
#pragma once

#include <memory>
#include <optional>

#include "model/layers/norm.hpp"

namespace trireme::model {

/// The transform of the masked-LM head: out = norm(gelu(x W^T + b)), with the exact GELU. Every
/// tensor rank has the whole W and computes the rows of its part of the residual stream.
class MaskedLmTransform {
 public:
  /// What the backward pass reads, and scratch memory: [U, h].
  struct Activations {
    Tensor dense_out, gelu_out, scratch;
    NormStatistics norm;
  };

  MaskedLmTransform(const NormSpec& norm, std::int64_t hidden, double init_std);

  void declare(ParameterTableBuilder& table) const;
  /// `parameters` must hold the last stage's and outlive this.
  void bind(const ParameterStore& parameters);
  Activations take(Arena& arena, const LayerSizes& sizes) const;

  /// Writes out [U, h] from x [U, h].
  void forward(const LayerContext& context, const Tensor& x, const Activations& saved,
               const Tensor& out) const;
  /// Turns `gradient` [U, h], that of out, into that of x, in place; adds those of the parameters.
  void backward(const LayerContext& context, const Tensor& x, const Activations& saved,
                const Tensor& gradient) const;

 private:
  std::int64_t hidden_;
  double init_std_;
  std::unique_ptr<Norm> norm_;
  WeightGradient weight_, bias_;
};

/// Classifies samples: logits = tanh(x_0 W_p^T + b_p) W_c^T + b_c of the first token's hidden state
/// x_0, the pooler and the classifier. Every tensor rank computes the same.
class SentenceHead {
 public:
  /// What the backward pass reads, and scratch memory. c classes.
  struct Activations {
    Tensor first, dense_out, pooled, scratch;  ///< [b, h]
    Tensor logits;                             ///< [b, c], then their gradient
    Tensor max, sum, target;                   ///< [b]
  };

  SentenceHead(std::int64_t classes, std::int64_t hidden, double init_std)
      : classes_(classes), hidden_(hidden), init_std_(init_std) {}

  void declare(ParameterTableBuilder& table) const;
  /// `parameters` must hold the last stage's and outlive this.
  void bind(const ParameterStore& parameters);
  Activations take(Arena& arena, const LayerSizes& sizes) const;

  /// Adds the summed loss of the labels that count to `loss` [1] f64, from this rank's part of the
  /// hidden states [U, h]. labels [b] int32 in the backend's memory, -1 ignored. With a `scale`
  /// saved.logits become the gradient of `scale` times that loss. Collective over the tensor group.
  void forward(const LayerContext& context, const Tensor& hidden, const std::int32_t* labels,
               std::optional<double> scale, const Activations& saved, const Tensor& loss) const;
  /// Adds the gradients of the parameters, and that of the hidden states to `gradient` [U, h],
  /// after forward() with a scale.
  void backward(const LayerContext& context, const Activations& saved,
                const Tensor& gradient) const;

 private:
  std::int64_t classes_, hidden_;
  double init_std_;
  WeightGradient pooler_, pooler_bias_, classifier_, classifier_bias_;
};

}  // namespace trireme::model
