// Gathers the weights that each data rank updated before passes read them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/sharding/layer_buffers.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// ZeRO-3: all-gathers the matrices of a layer, of which each data rank keeps a shard, into the
/// layer's buffer before passes read them; they stay until another layer uses the buffer.
/// Collective over the data ranks, which make the same calls. Source: Rajbhandari et al. (2020),
/// section 5.3.
class LayerWeightGather {
 public:
  /// All must outlive this. With `overlap`, the gather of the next layer overlaps with a pass.
  LayerWeightGather(device::Backend& backend, const model::Placement& placement,
                    const model::ParameterBuffer& weights, comm::Communicator& data,
                    const Shards& shards, bool overlap)
      : layers_(backend, placement, weights, data, shards, overlap) {}

  /// Before a pass reads the weights of `matrices`, those of one layer: gathers them and waits.
  void gather(const Range& matrices);
  /// With `overlap`, starts to gather `matrices`, unless that overwrites the buffer of `in_use`.
  /// Either may be empty.
  void prefetch(const Range& matrices, const Range& in_use);
  /// Marks all buffers as stale: the kept shards are about to change.
  void invalidate();

 private:
  void start(const Range& matrices);

  LayerBuffers layers_;
};

/// Gathers updated buckets over the data ranks (ZeRO-1), and copies the tied embedding to the last
/// stage. Sharded weights of matrices (ZeRO-3) are gathered layer by layer before passes.
class WeightGatherer {
 public:
  /// All must outlive it; `embedding` as in OptimizerGroups. With `overlap`, gathers are overlapped
  /// with updates and with the passes that follow.
  WeightGatherer(device::Backend& backend, model::ParameterStore& parameters,
                 comm::Communicator& data, comm::Communicator* embedding, const Shards& shards,
                 bool overlap);

  /// Starts to gather bucket `index`, whose owned part was updated. Collective over the data
  /// ranks.
  void updated(std::size_t index);
  /// After the last bucket: waits for all gathers, or with `overlap` leaves that to before_use().
  /// Collective over the data and embedding groups.
  void finish_update();
  /// As ParameterHooks. Collective over the data ranks under ZeRO-3.
  void before_use(const Range& range, const Range& next);

 private:
  /// Waits for the running gathers of buckets with elements in `range`.
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
