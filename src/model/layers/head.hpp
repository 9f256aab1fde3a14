// The last stage's part: final norm, output projection, vocabulary-parallel cross entropy.
#pragma once

#include <memory>
#include <optional>

#include "model/layers/norm.hpp"

namespace trireme::model {

/// From the residual stream to the loss. Logits are the widest tensors of a model: they are worked
/// on for C tokens at a time, from the GEMM to the weight gradient, and never kept.
class Head {
 public:
  /// What the head keeps for its backward pass, and its scratch memory. V is the vocabulary padded
  /// to a multiple of the tensor ranks, C loss_tokens().
  struct Activations {
    NormStatistics norm;
    Tensor norm_out;          ///< [T, h]
    Tensor gradient;          ///< [T, h], of norm_out: this rank's part
    Tensor logits;            ///< [C, V / t], then their gradient
    Tensor max, sum, target;  ///< [C], of the softmax, reduced over the tensor group
    Tensor local_max;         ///< [C], of this rank's columns; only with several tensor ranks
  };

  /// Tokens whose logits may be in memory at once. Many, since each time the gradient of the whole
  /// output projection is read and written.
  static constexpr std::int64_t kMaxLossTokens = 16384;

  explicit Head(const ModelSpec& spec, std::int64_t max_loss_tokens = kMaxLossTokens);

  void declare(ParameterTableBuilder& table) const;
  /// `parameters` must hold the last stage's and outlive this.
  void bind(const ParameterStore& parameters);
  /// The activations of one micro-batch, from `arena`.
  Activations take(Arena& arena, const LayerSizes& sizes) const;

  /// Tokens whose logits are worked on at a time.
  std::int64_t loss_tokens(const LayerSizes& sizes) const;
  /// Columns of the logits on every tensor rank, padding included.
  std::int64_t local_vocab(const LayerSizes& sizes) const {
    return grid::padded_shard(vocab_, sizes.tensor_ranks, 0).padded;
  }

  /// Writes the logits of stream [S, b, h], of at most C tokens, into saved.logits. Collective over
  /// the tensor group.
  void logits(const LayerContext& context, const Tensor& stream, const Activations& saved) const;

  /// Adds the summed loss of the labels that count to `loss` [1] f64. labels [T], -1 ignored. With
  /// a `scale`, backward() is to follow: what the gradient of `scale` times that loss needs of the
  /// logits is worked out, and that of the output projection added. The loss is the same on every
  /// rank of the tensor group. Collective over it.
  void forward(const LayerContext& context, const Tensor& stream, const std::int32_t* labels,
               std::optional<double> scale, const Activations& saved, const Tensor& loss) const;

  /// Writes the gradient of the scaled loss with respect to stream into `gradient` [S, b, h] and
  /// adds those of the norm, as TransformerBlock::backward(), after forward() with a scale.
  /// Collective over the tensor group.
  void backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                const Tensor& gradient) const;

 private:
  /// Writes saved.norm_out, of all ranks' tokens.
  void normalize(const LayerContext& context, const Tensor& stream, const Activations& saved) const;
  /// From saved.norm_out to the loss and saved.gradient, which hold the same tokens.
  void add_loss(const LayerContext& context, const std::int32_t* labels,
                std::optional<double> scale, const Activations& saved, const Tensor& loss) const;

  std::int64_t hidden_, vocab_, max_loss_tokens_;
  double init_std_;
  bool tied_;
  std::unique_ptr<Norm> norm_;
  WeightGradient output_;  ///< the output projection [V, h]
};

}  // namespace trireme::model
