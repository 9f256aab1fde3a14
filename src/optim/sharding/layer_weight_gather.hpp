// ZeRO-3: each data rank keeps the weights that it owns alone.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/buffer.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// Brings the matrices of layers, of which each data rank keeps its part, into their buffers before
/// passes read them; they stay until another layer needs the buffer. Collective over the data
/// ranks, which make the same calls.
class LayerWeightGather {
 public:
  /// All must outlive this. With `overlap`, the layer that comes next is gathered beside a pass.
  LayerWeightGather(device::Backend& backend, const model::Placement& placement,
                    const model::ParameterBuffer& weights, comm::Communicator& data,
                    const Shards& shards, bool overlap);

  /// Before a pass reads the weights of `matrices`, those of one layer.
  void bring(const Range& matrices);
  /// With `overlap`, starts to bring them, unless that needs the buffer of `reading`. Either may be
  /// empty.
  void prefetch(const Range& matrices, const Range& reading);
  /// The kept weights are about to change: what is in the buffers will be out of date.
  void forget();

 private:
  /// What is in a layer's buffer, or on its way there.
  struct Content {
    Range matrices;
    std::vector<std::unique_ptr<comm::Request>> arriving;
    void wait();
  };

  Content& content_of(const Range& matrices);
  void start(const Range& matrices);

  device::Backend& backend_;
  const model::Placement& placement_;
  const model::ParameterBuffer& weights_;
  comm::Communicator& data_;
  const Shards& shards_;
  bool overlap_;
  std::vector<Content> contents_;  ///< of each buffer
};

}  // namespace trireme::optim
