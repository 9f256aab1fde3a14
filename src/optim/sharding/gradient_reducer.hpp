// Gradient reduction: from each rank's sums over its micro-batches to the whole model's gradient.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// Sums the gradients of layers' matrices over the data ranks each time that a pass has added to
/// them in their buffer, and keeps what this rank owns. What was kept so far is in the buffer when
/// a pass adds to it: over a step each sum has the terms, and the type, that it has where gradients
/// are whole, but another order of terms when there are several micro-batches. Collective over the
/// data ranks, which make the same calls.
class LayerGradientScatter {
 public:
  /// All must outlive this. With `overlap`, sums run beside the passes that come next.
  LayerGradientScatter(device::Backend& backend, const model::Placement& placement,
                       const model::ParameterBuffer& gradients, comm::Communicator& data,
                       const Shards& shards, bool overlap);

  /// Before a pass adds to the gradients of `matrices`, those of one layer.
  void open(const Range& matrices);
  /// After that.
  void close(const Range& matrices);
  /// Waits until everything that was closed is kept.
  void finish();

 private:
  /// What is in a layer's buffer.
  struct Content {
    Range matrices;
    std::vector<std::unique_ptr<comm::Request>> sums;
  };

  /// The buffer's content once more passes have come to it.
  Content& content_of(const Range& matrices);
  /// Waits for the sums in a buffer and keeps them.
  void keep(Content& content);
  /// Copies this rank's parts of the layer between its buffer and where they are kept.
  enum class Way { to_buffer, from_buffer };
  void copy_own(const Range& matrices, Way way) const;

  device::Backend& backend_;
  const model::Placement& placement_;
  const model::ParameterBuffer& gradients_;
  comm::Communicator& data_;
  const Shards& shards_;
  bool overlap_;
  std::vector<Content> contents_;  ///< of each buffer
};

/// Sums over the ranks that hold a copy what each one's passes added. The ranks of the other shards
/// take part with zeros, in slots of their own: that needs no group for each shard, and what moves
/// is small, since shards are copied where a parameter has few.
class CopiedGradients {
 public:
  /// All must outlive it. `tensor` may be null where nothing is copied; throws InternalError where
  /// it is needed.
  CopiedGradients(device::Backend& backend, model::ParameterStore& parameters,
                  comm::Communicator* tensor, const Shards& shards, int data_rank);
  /// Bytes that this allocates; `dtype` is that of the weights.
  static std::size_t planned_bytes(const model::Placement& placement, int tensor_ranks,
                                   DType dtype);

  /// Sums those of the owned shard, after the reduction over the data ranks. Collective over the
  /// tensor group.
  void sum();

 private:
  void sum(const Tensor& gradient, const model::LocalParameter& local);

  device::Backend& backend_;
  model::ParameterStore& parameters_;
  comm::Communicator* tensor_;
  const Shards& shards_;
  int data_rank_;
  device::Buffer slots_;  ///< of kMaxElements for each shard; null where nothing is copied
};

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
