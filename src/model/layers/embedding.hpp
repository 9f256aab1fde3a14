// The first stage's part: token and position embeddings, sharded over tensor ranks by vocabulary.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model/layers/norm.hpp"

namespace trireme::model {

/// Token embedding, token-type and position embeddings that are added, dropout; an optional norm of
/// the token embedding or of the sum.
class Embedding {
 public:
  /// What the embedding keeps for its backward pass; only with a norm.
  struct Activations {
    Tensor norm_in;  ///< [S, b, h]: the token embedding, or the sum
    NormStatistics norm;
  };

  explicit Embedding(const ModelSpec& spec);

  void declare(ParameterTableBuilder& table) const;
  /// `parameters` must hold the first stage's and outlive this.
  void bind(const ParameterStore& parameters);
  /// The activations of one micro-batch, from `arena`.
  Activations take(Arena& arena, const LayerSizes& sizes) const;

  /// Tokens in the backend's memory.
  struct Tokens {
    const std::int32_t* ids = nullptr;        ///< [T], sequence-major
    const std::int32_t* positions = nullptr;  ///< [T]; null: first_position and on
    const std::int32_t* types = nullptr;      ///< [T]; where the spec has token types
    std::int64_t first_position = 0;
  };

  /// fp32 weights for passes in 16 bits, in their local shapes, and memory [s, b, h] to sum them
  /// in. Empty: the embedding is looked up and summed in the weights' type.
  struct Fp32 {
    Tensor word, type, position;
    Tensor sum;
  };
  /// Those of this embedding: find(name) is a parameter's fp32 weight.
  Fp32 find_fp32(const std::function<Tensor(const std::string& name)>& find,
                 const Tensor& sum) const;

  /// Writes output [S, b, h]. `scratch` [s, b, h] is used only under sequence parallelism. With
  /// `fp32` the sum is rounded once: before a norm of it, and else after dropout. Collective over
  /// the tensor group. Source of --fp32-embedding: Megatron-LM's first BERT, whose norm and dropout
  /// follow the rounding; its gradients do not depend on it.
  void forward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
               const Activations& saved, const Tensor& output, const Tensor& scratch = {},
               const Fp32& fp32 = {}) const;

  /// Adds the gradients of the embeddings, as TransformerBlock::backward(). `gradient` [S, b, h] of
  /// the output is overwritten; `scratch` [s, b, h]. Collective over the tensor group.
  void backward(const LayerContext& context, const PassInfo& pass, const Tokens& tokens,
                const Activations& saved, const Tensor& gradient, const Tensor& scratch) const;

 private:
  EmbeddingSpec spec_;
  std::int64_t hidden_, vocab_;
  double init_std_;
  bool tied_;
  std::unique_ptr<Norm> norm_;  ///< null without one
  WeightGradient word_, type_, position_;
};

}  // namespace trireme::model
