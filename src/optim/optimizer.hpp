// From the gradients of a step to the weights of the next: reduction over ranks, global norm,
// clipping, AdamW.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameter_store.hpp"
#include "optim/shards.hpp"

namespace trireme::optim {

/// The deck's `optimizer` section and how its state is spread.
struct OptimizerConfig {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double clip = 1.0;        ///< largest global gradient norm; 0 leaves gradients as they are
  bool shard_state = true;  ///< ZeRO-1: each data rank keeps and updates its shard
  std::int64_t bucket = 25'000'000;  ///< elements reduced at a time
};

/// The groups that an optimizer reduces over.
struct OptimizerGroups {
  comm::Communicator& world;
  comm::Communicator& data;  ///< ranks with the same shard of the model
  /// First and last stage when they are different ones and this rank is on one of them, else null;
  /// rank 0 is the first.
  comm::Communicator* embedding;
};

/// A stretch of this rank's flat buffers that belongs to one parameter: what a checkpoint saves and
/// loads.
struct OwnedPart {
  const model::Parameter* parameter = nullptr;
  grid::Boxes boxes;               ///< of the logical tensor, in memory order
  std::int64_t weight_offset = 0;  ///< into ParameterStore::weights()
  std::int64_t state_offset = 0;   ///< into momentum() and variance()
  bool primary = true;             ///< exactly one rank holds each element as primary
};

/// AdamW over the owned part of a rank's flat buffers.
class Optimizer {
 public:
  /// Allocates the moments. `parameters` and the groups must outlive it.
  Optimizer(device::Backend& backend, model::ParameterStore& parameters,
            const OptimizerGroups& groups, const OptimizerConfig& config);

  /// Bytes of the moments of a rank that places `placement`.
  static std::size_t planned_bytes(const model::Placement& placement, int data_ranks,
                                   bool shard_state, DType dtype);

  /// Sums the gradients over the data ranks, and the tied embedding's over first and last stage.
  /// Under ZeRO-1 only the owned shard of each bucket is valid afterwards. Collective over the data
  /// and embedding groups.
  void reduce_gradients();

  /// L2 norm of the whole model's gradient, each logical element counted once. Collective over the
  /// world; the same bits everywhere.
  double gradient_norm();

  /// One update with the reduced gradients, scaled by min(1, clip / (norm + 1e-6)), then the new
  /// weights to all ranks that hold them. Collective over the data and embedding groups. Source of
  /// the coefficient: torch.nn.utils.clip_grad_norm_.
  void update(double learning_rate, double gradient_norm);

  /// Copies the weights that other ranks own here: after loading a checkpoint's owned parts.
  /// Collective as update().
  void gather_weights();

  /// Updates so far; part of a checkpoint.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

  /// First and second moments, the owned ranges one after another.
  Tensor momentum() const { return momentum_; }
  Tensor variance() const { return variance_; }

  /// What this rank owns, parameter by parameter.
  std::vector<OwnedPart> owned_parts() const;

 private:
  /// A stretch that one kernel call updates.
  struct Segment {
    Range range;
    std::int64_t state_offset = 0;
    bool weight_decay = false;
    bool counted = false;  ///< enters the norm here
  };

  void build_segments();

  device::Backend& backend_;
  model::ParameterStore& parameters_;
  OptimizerGroups groups_;
  OptimizerConfig config_;
  Shards shards_;
  std::vector<Segment> segments_;
  device::Buffer memory_;
  Tensor momentum_;
  Tensor variance_;
  Tensor norm_;
  std::int64_t step_ = 0;
};

}  // namespace trireme::optim
