// Gradient reduction: from each rank's sums over its micro-batches to the whole model's gradient.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "model/parameters/store.hpp"
#include "optim/sharding/copied_gradients.hpp"
#include "optim/sharding/layer_gradient_scatter.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// The groups that an optimizer communicates over.
struct OptimizerGroups {
  comm::Communicator& world;
  comm::Communicator& data;  ///< ranks with the same shard of the model
  /// First and last stage when they are different ones and this rank is on one of them, else null;
  /// rank 0 is the first.
  comm::Communicator* embedding;
  /// The tensor ranks under sequence parallelism, else null.
  comm::Communicator* sequence_parallel = nullptr;
  /// The tensor ranks; null only where they hold no copies of shards (Parameter::max_shards).
  comm::Communicator* tensor = nullptr;
};

/// Sums gradients bucket by bucket over the data ranks: by all-reduce, or with several shards by
/// reduce-scatter (ZeRO-1). Before that, sums over the tensor ranks what sequence parallelism
/// leaves as partial sums, and over first and last stage the tied embedding. Where gradients of
/// matrices are sharded (ZeRO-2), those are scattered pass by pass instead. Last come the sums over
/// copies of shards.
class GradientReducer {
 public:
  /// All must outlive it. With `overlap`, a bucket is reduced as soon as it is complete, overlapped
  /// with the passes that follow.
  GradientReducer(device::Backend& backend, model::ParameterStore& parameters,
                  const OptimizerGroups& groups, const Shards& shards, bool overlap);

  /// Before a pass adds to the gradients of a layer's matrices.
  void before_gradient(const Range& matrices);
  /// After it. `complete`: no other pass of this step adds to them. Collective as finish().
  void gradient_ready(const Range& matrices, bool complete);
  /// Reduces the rest and waits for all. With several shards only the owned one of each bucket is
  /// valid afterwards. Collective over the data, embedding and tensor groups.
  void finish();

 private:
  /// The buckets that are reduced at the end of a step.
  std::size_t buckets_to_reduce() const;
  /// Starts the reduction of all of them from element `begin` on that is not under way.
  void start(std::int64_t begin);
  void sum_tied_embedding();
  /// Sums over the tensor ranks what of `bucket` is the gradient of each one's positions alone.
  void sum_sequence_parallel(const Range& bucket);

  model::ParameterStore& parameters_;
  OptimizerGroups groups_;
  const Shards& shards_;
  bool overlap_;
  std::optional<LayerGradientScatter> scatter_;  ///< ZeRO-2
  CopiedGradients copied_;
  std::vector<Range>
      sequence_ranges_;        ///< of the flat buffers, ascending: Parameter::sequence_parallel
  std::size_t unreduced_ = 0;  ///< buckets, the first ones, that are not being reduced
  std::vector<std::unique_ptr<comm::Request>> requests_;
};

}  // namespace trireme::optim
