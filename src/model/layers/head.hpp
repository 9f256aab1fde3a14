// The last stage's part: final norm, output projection, vocabulary-parallel cross entropy; and
// BERT's heads.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "model/layers/norm.hpp"

namespace trireme::model {

// ---- BERT's heads: the transform before the output projection of the masked LM, and the
// classifier of sentence pairs.
// Source: Devlin et al., "BERT" (2019), section 3.1; names as in Megatron-LM's BertLMHead and
// Pooler.

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

// ---- the head

/// The factors of a micro-batch's summed losses of which a pass computes the gradient.
struct LossScales {
  LossScales(double tokens_in, double sentences_in = 0.0)
      : tokens(tokens_in), sentences(sentences_in) {}
  double tokens;     ///< of the loss of all tokens
  double sentences;  ///< of that of all sentence labels
};

/// The labels of a micro-batch, in the backend's memory; -1 ignored.
struct Labels {
  const std::int32_t* tokens = nullptr;     ///< [T]
  const std::int32_t* sentences = nullptr;  ///< [b], where the spec has sentence classes
};

/// The tokens that have labels, at most n, in the order of kernels::SelectLabels.
struct SelectedTokens {
  std::int32_t* rows = nullptr;    ///< [n]: their numbers
  std::int32_t* labels = nullptr;  ///< [n]
  std::int32_t* places = nullptr;  ///< [T]: of each token among them
  Tensor norm_out, gradient;       ///< [n, h]: their rows of the tensors with these names
};

/// From the residual stream to the loss. Logits are the widest tensors of a model: they exist for C
/// tokens at a time, from the GEMM to the weight gradient, and are never kept.
class Head {
 public:
  /// What the head keeps for its backward pass, and its scratch memory. V is the vocabulary padded
  /// to a multiple of the tensor ranks, C loss_tokens().
  struct Activations {
    NormStatistics norm;
    Tensor hidden;    ///< [U, h], after the final norm; only with one before a transform
    Tensor norm_out;  ///< [T, h], the input of the output projection
    Tensor gradient;  ///< [T, h], of norm_out: this rank's part
    MaskedLmTransform::Activations transform;
    SentenceHead::Activations sentence;
    SelectedTokens selected;
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

  /// Tokens that the output projection reads for the loss: T, or those that may have labels.
  std::int64_t labelled_tokens(const LayerSizes& sizes) const;
  /// Tokens whose logits are in memory at a time: C.
  std::int64_t loss_tokens(const LayerSizes& sizes) const;
  /// Columns of the logits on every tensor rank, padding included.
  std::int64_t local_vocab(const LayerSizes& sizes) const {
    return grid::padded_shard(vocab_, sizes.tensor_ranks, 0).padded;
  }

  /// Writes the logits of stream [S, b, h], of at most C tokens, into saved.logits. Collective over
  /// the tensor group.
  void logits(const LayerContext& context, const Tensor& stream, const Activations& saved) const;

  /// Called without scales for tokens [first, first + C') of the micro-batch, whose logits, max,
  /// sum and target are in `saved` [C', ...] until it returns.
  using Observer = std::function<void(std::int64_t first, const Activations& saved)>;

  /// Adds the summed losses of the tokens' and the sentences' labels that count to losses[0] and
  /// losses[1], and raises losses[2] to the largest logit of these tokens; `losses` [3] f64. With
  /// `scales`, backward() must follow: computes the gradient of the scaled losses as far as it
  /// needs the logits, and adds that of the output projection. The losses are the same on every
  /// rank of the tensor group. Collective over it.
  void forward(const LayerContext& context, const Tensor& stream, const Labels& labels,
               const std::optional<LossScales>& scales, const Activations& saved,
               const Tensor& losses, const Observer& observer = {}) const;

  /// Writes the gradient of the scaled loss with respect to stream into `gradient` [S, b, h] and
  /// adds those of the norm, as TransformerBlock::backward(), after forward() with a scale.
  /// Collective over the tensor group.
  void backward(const LayerContext& context, const Tensor& stream, const Activations& saved,
                const Tensor& gradient) const;

 private:
  /// The rows [U, h] that normalize() reads after the final norm, if any.
  Tensor hidden_states(const LayerContext& context, const Tensor& stream,
                       const Activations& saved) const;
  /// Writes saved.norm_out, of all ranks' tokens.
  void normalize(const LayerContext& context, const Tensor& stream, const Activations& saved) const;
  /// Writes saved.selected, without the gradient, from saved.norm_out.
  void select(const LayerContext& context, const std::int32_t* labels,
              const Activations& saved) const;
  /// From saved.norm_out to the loss and saved.gradient, which hold the same tokens.
  void add_loss(const LayerContext& context, const std::int32_t* labels,
                std::optional<double> scale, const Activations& saved, const Tensor& loss,
                const Tensor& largest) const;

  std::int64_t hidden_, vocab_, max_loss_tokens_, max_labels_;
  double init_std_, logit_scale_, z_loss_;
  bool tied_, has_bias_;
  std::unique_ptr<Norm> norm_;  ///< null without one
  std::optional<MaskedLmTransform> transform_;
  std::optional<SentenceHead> sentence_;
  WeightGradient output_, bias_;  ///< the output projection [V, h] and its bias [V]
};

}  // namespace trireme::model
