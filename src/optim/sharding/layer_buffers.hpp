// Sharded matrices of layers, and the collectives that use the buffers they pass through.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// A ParameterBuffer of which each data rank keeps a shard (weights under ZeRO-3, gradients under
/// ZeRO-2), and which holds whole layers in a few buffers in turn: the layer in each of these, and
/// the collectives that read or write it.
class LayerBuffers {
 public:
  /// All must outlive this. With `overlap`, collectives overlap with passes.
  LayerBuffers(device::Backend& backend, const model::Placement& placement,
               const model::ParameterBuffer& memory, comm::Communicator& data, const Shards& shards,
               bool overlap)
      : backend(backend),
        memory(memory),
        data(data),
        shards(shards),
        overlap(overlap),
        contents(memory.buffers()),
        placement_(placement) {}

  /// The layer in a buffer, and the collectives on it that run.
  struct Content {
    Range matrices;
    std::vector<std::unique_ptr<comm::Request>> requests;

    /// Waits for the collectives.
    void wait() {
      for (const auto& request : requests) request->wait();
      requests.clear();
    }
  };
  /// The buffer of the layer whose matrices these are.
  Content& content_of(const Range& matrices) {
    return contents[placement_.layer_at(matrices.begin) % contents.size()];
  }

  /// This rank's part of `bucket` in the layer's buffer, and where it is kept.
  Tensor passing(const Range& bucket) const { return memory.at(owned(bucket)); }
  Tensor kept(const Range& bucket) const {
    return memory.own(owned(bucket), shards.state_offset(bucket));
  }

  device::Backend& backend;
  const model::ParameterBuffer& memory;
  comm::Communicator& data;
  const Shards& shards;
  const bool overlap;
  std::vector<Content> contents;  ///< of each buffer

 private:
  Range owned(const Range& bucket) const { return shards.owned_of(bucket, data.rank()); }

  const model::Placement& placement_;
};

}  // namespace trireme::optim
