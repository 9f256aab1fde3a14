// From the weights that each data rank updated to those that passes read.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
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

/// Gathers updated buckets over the data ranks (ZeRO-1), and copies the tied embedding to the last
/// stage. Where weights of matrices are sharded (ZeRO-3), passes gather those layer by layer.
class WeightGatherer {
 public:
  /// All must outlive it; `embedding` as in OptimizerGroups. With `overlap`, gathers are overlapped
  /// with updates and with the passes that follow.
  WeightGatherer(device::Backend& backend, model::ParameterStore& parameters,
                 comm::Communicator& data, comm::Communicator* embedding, const Shards& shards,
                 bool overlap);

  /// The owned part of bucket `index` was updated: starts to gather it. Collective over the data
  /// ranks.
  void updated(std::size_t index);
  /// After the last bucket. Waits for all, unless that is left to before_use(). Collective over the
  /// data and embedding groups.
  void finish_update();
  /// Before a pass reads the weights of `range`, and next, most likely, those of `next` (empty
  /// where nothing is known). Collective over the data ranks under ZeRO-3.
  void before_use(const Range& range, const Range& next);

 private:
  /// Waits for the buckets with elements in `range` that are being gathered.
  void wait_for(const Range& range);

  model::ParameterStore& parameters_;
  comm::Communicator& data_;
  comm::Communicator* embedding_;
  const Shards& shards_;
  bool overlap_;
  std::optional<LayerWeightGather> layers_;               ///< ZeRO-3
  std::vector<std::unique_ptr<comm::Request>> requests_;  ///< by bucket; null when waited for
};

}  // namespace trireme::optim
