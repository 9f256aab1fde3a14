// Gradients of shards that several tensor ranks hold copies of (model::Parameter::max_shards): key
// and value heads where there are more tensor ranks than such heads.
#pragma once

#include "comm/communicator.hpp"
#include "model/parameters/store.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

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

}  // namespace trireme::optim
