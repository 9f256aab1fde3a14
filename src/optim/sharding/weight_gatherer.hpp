// From the weights that each data rank updated to those that passes read.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "model/parameters/store.hpp"
#include "optim/sharding/layer_weight_gather.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

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
