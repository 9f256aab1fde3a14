// What all layers work with: sizes, the backend, the tensor group, the pass.
// Letters: s sequence, b micro-batch, T = s b tokens, h hidden, t tensor ranks; S and U are the
// parts of s and T that a rank has of the residual stream: s and T themselves, or under sequence
// parallelism s / t and T / t.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "grid/layout.hpp"

namespace trireme::model {

/// The sizes of a rank's tensors that all layers share.
struct LayerSizes {
  std::int64_t hidden = 1;
  std::int64_t sequence = 1;
  std::int64_t micro_batch = 1;
  int tensor_ranks = 1;
  DType dtype = DType::f32;
  bool sequence_parallel = false;  ///< each tensor rank has a part of the residual stream

  std::int64_t tokens() const { return sequence * micro_batch; }
  /// Parts into which tensor ranks shard the residual stream.
  int sp_ranks() const { return sequence_parallel ? tensor_ranks : 1; }
  /// The whole residual stream: [s, b, h].
  Shape hidden_shape() const { return {sequence, micro_batch, hidden}; }
  /// A rank's part of it: [S, b, h].
  Shape shard_shape() const { return {sequence / sp_ranks(), micro_batch, hidden}; }
  /// The same in rows, one for each token: [U, h].
  Shape shard_rows() const { return {tokens() / sp_ranks(), hidden}; }
};

/// The sizes with what computes and communicates.
struct LayerContext : LayerSizes {
  LayerContext(const LayerSizes& sizes, device::Backend& backend_in, comm::Communicator& tensor_in)
      : LayerSizes(sizes), backend(backend_in), tensor(tensor_in) {}

  device::Backend& backend;
  comm::Communicator& tensor;  ///< the tensor-parallel group

  /// The first position of this rank's part of the residual stream.
  std::int64_t first_position() const {
    return sp_ranks() == 1 ? 0 : tensor.rank() * shard_shape()[0];
  }
};

/// The rows of a vocabulary of `vocab` that this rank holds.
inline grid::ShardRange vocabulary_shard(const LayerContext& context, std::int64_t vocab) {
  return grid::padded_shard(vocab, context.tensor_ranks, context.tensor.rank());
}

/// Where a layer stands in the model.
struct LayerPlace {
  std::string name;  ///< prefix of its parameters, such as "layers/3/"
  int layer = 0;     ///< keys dropout
  std::int64_t hidden = 1;
  double init_std = 0.02;         ///< of initial weights
  double output_init_std = 0.02;  ///< of those that end a sublayer
};

/// How a forward pass treats one micro-batch: dropout is on when training, keyed by the first
/// sample's index in the run.
struct PassInfo {
  bool training = true;
  std::uint64_t seed = 0;
  std::uint64_t first_sample = 0;
  /// Where each token's document begins: [b, s] in the backend's memory; null: attention ignores
  /// documents.
  const std::int32_t* document_start = nullptr;

  /// The dropout of one site.
  kernels::Dropout dropout(double probability, int layer, DropoutSite site) const {
    return {.probability = training ? probability : 0.0,
            .seed = seed,
            .first_sample = first_sample,
            .layer = static_cast<std::uint32_t>(layer),
            .site = site};
  }
};

/// Scratch memory of a rank, shared by all its layers and micro-batches.
struct LayerWorkspace {
  Tensor hidden;   ///< [s, b, h]: a sublayer's output before its tensor-parallel sum; its gradient
  Tensor inner;    ///< gradients inside a sublayer: the largest Mlp or Attention::inner_width()
  Tensor heads;    ///< [s, b, heads head_dim / t]: gradient of the heads' outputs
  Tensor staging;  ///< like hidden: registered with the tensor group, where there is one
};

/// [s, b, n] or [T, n] as [T, n].
inline Tensor as_rows(const Tensor& tensor) {
  const std::int64_t width = tensor.shape[tensor.shape.rank() - 1];
  return tensor.view({tensor.size() / width, width});
}

/// The first elements of a workspace tensor, with the wanted shape.
inline Tensor front(const Tensor& tensor, Shape shape) {
  return tensor.view({tensor.size()}).rows(0, shape.size()).view(shape);
}

}  // namespace trireme::model
