// From the gradients of a step to the weights of the next: reduction over ranks, global norm,
// clipping, the update.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameter_store.hpp"
#include "model/pass_observer.hpp"
#include "optim/gradient_scatter.hpp"
#include "optim/shards.hpp"
#include "optim/weight_gather.hpp"

namespace trireme::optim {

/// The update rules; see the kernels AdamW, Sgd and LambDirection for their formulas. Adam is AdamW
/// with the weight decay in the gradient.
enum class OptimizerType { adamw, adam, sgd, lamb };

/// The deck's `optimizer` section and how its state is spread.
struct OptimizerConfig {
  OptimizerType type = OptimizerType::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;    ///< of sgd
  double clip = 1.0;        ///< largest global gradient norm; 0 leaves gradients as they are
  bool shard_state = true;  ///< ZeRO-1: each data rank keeps and updates its shard
  std::int64_t bucket = 25'000'000;  ///< elements reduced at a time
  bool overlap_gradients = true;     ///< reduce them beside backward passes
  bool overlap_parameters = true;    ///< gather weights beside passes
};

/// What one update goes by.
struct UpdateStep {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double gradient_norm = 0.0;  ///< of gradient_norm()
  double loss_scale = 1.0;     ///< that the gradients carry
};

/// The groups that an optimizer reduces over.
struct OptimizerGroups {
  comm::Communicator& world;
  comm::Communicator& data;  ///< ranks with the same shard of the model
  /// First and last stage when they are different ones and this rank is on one of them, else null;
  /// rank 0 is the first.
  comm::Communicator* embedding;
  /// The tensor ranks when they cut the residual stream among them (LayerSizes::cut_sequence), else
  /// null.
  comm::Communicator* stream = nullptr;
};

/// A stretch of this rank's flat buffers that belongs to one parameter: what a checkpoint saves and
/// loads.
struct OwnedPart {
  const model::Parameter* parameter = nullptr;
  grid::Boxes boxes;               ///< of the logical tensor, in memory order
  std::int64_t weight_offset = 0;  ///< in the placement, of weight and gradient
  std::int64_t state_offset = 0;   ///< into states() and a separate master copy
  bool primary = true;             ///< exactly one rank holds each element as primary
};

/// What an update rule keeps of every parameter.
struct OptimizerState {
  std::string name;  ///< "m" or "v", its group in a checkpoint
  Tensor tensor;     ///< of the owned ranges, one after another
};

/// An update rule over the owned part of a rank's flat buffers. Weights of a half type have a
/// master copy of the owned part in fp32, which is updated and then rounded into them.
///
/// As observer of the passes it starts the reduction of a bucket of gradients as soon as it is
/// complete, and lets a pass wait for the weights that it needs. Where `parameters` has the layers'
/// matrices or their gradients cut among the data ranks, it must observe all passes, and passes are
/// collective over the data ranks.
class Optimizer final : public model::PassObserver {
 public:
  /// Allocates the state and the master copy. `parameters` and the groups must outlive it. Throws
  /// InternalError when it is to keep the state of matrices that it holds a part of, and for LAMB
  /// with narrow gradients, which have no room for what it keeps in their place.
  Optimizer(device::Backend& backend, model::ParameterStore& parameters,
            const OptimizerGroups& groups, const OptimizerConfig& config);

  /// Bytes of the state, of the master copy where weights are of a half type, and of what narrow
  /// gradients are widened to, of a rank that places `placement`; `dtype` is that of the weights.
  static std::size_t planned_bytes(const model::Placement& placement, int data_ranks,
                                   const OptimizerConfig& config, DType dtype,
                                   bool narrow_gradients = false);

  /// Draws the initial weights (ParameterStore::initialize) of the owned parts into the master copy
  /// and gathers them. Collective as update().
  void initialize(std::uint64_t seed);

  /// Waits for the weights of `range` where they are still being gathered, or gathers them.
  void before_reading(const Range& range, const Range& next) override;
  void before_adding(const Range& matrices) override;
  /// Starts the reduction of what is complete. Collective as reduce_gradients().
  void after_adding(const Range& matrices, bool complete) override;

  /// Sums the gradients over the data ranks, the tied embedding's over first and last stage, and
  /// those that are parts over the tensor ranks. Under ZeRO-1 only the owned shard of each bucket
  /// is valid afterwards. Collective over the data, embedding and stream groups.
  void reduce_gradients();

  /// L2 norm of the whole model's gradient, each logical element counted once, after division by
  /// the loss scale that the gradients carry. Not finite where any gradient is not. Collective over
  /// the world; the same bits everywhere.
  double gradient_norm(double loss_scale = 1.0);

  /// The number of zeros in the whole model's reduced gradient, before update(), and the L2 norm of
  /// its weights in the precision of updates; each logical element counted once. Collective over
  /// the world; the same everywhere.
  std::int64_t gradient_zeros();
  double parameter_norm();

  /// One update with the reduced gradients, divided by the loss scale and scaled by
  /// min(1, clip / (norm + 1e-6)), then the new weights to all ranks that hold them. Collective
  /// over the data and embedding groups, LAMB's over the world. The gradients are not kept. Source
  /// of the coefficient: torch.nn.utils.clip_grad_norm_.
  void update(const UpdateStep& step);

  /// Rounds the master copy into the weights, and copies here those that other ranks own: after the
  /// owned parts were loaded from a checkpoint. Collective as update().
  void gather_weights();

  /// Updates so far; part of a checkpoint.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

  /// What the update rule keeps: the first moment or momentum "m", the second moment "v"; without
  /// momentum, gradient descent keeps nothing.
  const std::vector<OptimizerState>& states() const { return states_; }

  /// What this rank owns, parameter by parameter.
  std::vector<OwnedPart> owned_parts() const;

  /// The weights of `part` in the precision of updates, which is what a checkpoint holds; its
  /// weights as passes read them, and its gradient.
  Tensor master(const OwnedPart& part) const { return master(range_of(part), part.state_offset); }
  Tensor weights(const OwnedPart& part) const { return weights(range_of(part), part.state_offset); }
  Tensor gradient(const OwnedPart& part) const {
    return gradient(range_of(part), part.state_offset);
  }

 private:
  /// A range of the flat buffers that one call updates.
  struct OwnedRange {
    Range range;
    std::int64_t state_offset = 0;
    kernels::Stretches decayed;
    kernels::Stretches counted;  ///< in the norm
    /// Its part of a tensor of the owned ranges.
    Tensor in(const Tensor& state) const { return state.rows(state_offset, range.size()); }
  };

  /// Allocates what the update rule keeps.
  void allocate_state();
  /// A range by AdamW, Adam or gradient descent.
  void update_range(const OwnedRange& owned, const UpdateStep& step, double gradient_scale);
  /// LAMB's direction of a range, over its gradient.
  void direct_range(const OwnedRange& owned, const UpdateStep& step, double gradient_scale);
  /// LAMB's step of the parameters in a range along their directions.
  void step_range(const OwnedRange& owned, double learning_rate, const std::vector<double>& trust);
  /// |w| / |u| of every parameter of the table, 1 where either is 0. Collective over the world.
  std::vector<double> trust_ratios();
  /// The ranges that this rank owns, and where in them weight decay and norm apply.
  void build_ranges();
  /// What `add(range, sum)` adds to `sum` [1] f64 for the ranges owned here, summed over the world.
  template <typename Add>
  double sum_over_owned(const Add& add);
  static Range range_of(const OwnedPart& part) {
    return {part.weight_offset, part.weight_offset + grid::count_elements(part.boxes)};
  }
  /// Of a range that this rank owns, whose state is at `state`: the weights in the precision of
  /// updates and as passes read them, the gradient.
  Tensor master(const Range& range, std::int64_t state) const {
    return has_master_copy() ? master_.rows(state, range.size()) : weights(range, state);
  }
  Tensor weights(const Range& range, std::int64_t state) const {
    return parameters_.weight_memory().own(range, state);
  }
  Tensor gradient(const Range& range, std::int64_t state) const {
    return parameters_.gradient_memory().own(range, state);
  }
  Tensor master(const OwnedRange& owned) const { return master(owned.range, owned.state_offset); }
  Tensor weights(const OwnedRange& owned) const { return weights(owned.range, owned.state_offset); }
  /// The gradient of a range in the precision of updates; until the next call where passes sum it
  /// in a narrower type.
  Tensor gradient(const OwnedRange& owned) const;
  bool has_master_copy() const { return static_cast<bool>(master_); }
  /// Where weights are rounded to beside the master copy; nothing without one.
  Tensor rounded(const OwnedRange& owned) const {
    return has_master_copy() ? weights(owned) : Tensor();
  }
  /// The buckets that are reduced at the end of a step.
  std::size_t buckets_to_reduce() const;
  /// Starts the reduction of all of them from element `begin` on that is not under way.
  void start_reductions(std::int64_t begin);
  /// Sums over the tensor ranks what of `bucket` is the gradient of each one's positions alone.
  void sum_stream_gradients(const Range& bucket);
  /// Starts to gather bucket `index` from the ranks that own its parts, unless passes do.
  void start_gathering(std::size_t index);
  /// Waits for the buckets in [begin, end) that are being gathered.
  void finish_gathering(std::int64_t begin, std::int64_t end);
  /// After the last bucket: waits unless that is left to the next pass, and copies the tied
  /// embedding.
  void finish_gathering();

  device::Backend& backend_;
  model::ParameterStore& parameters_;
  OptimizerGroups groups_;
  OptimizerConfig config_;
  Shards shards_;
  std::optional<GradientScatter> scatter_;  ///< where gradients are cut
  std::optional<WeightGather> gather_;      ///< where weights are cut
  std::vector<OwnedRange> ranges_;
  std::vector<Range> stream_ranges_;  ///< of the flat buffers: Parameter::of_stream, ascending
  std::size_t unreduced_ = 0;         ///< buckets, the first ones, that are not being reduced
  std::vector<std::unique_ptr<comm::Request>> reductions_;
  std::vector<std::unique_ptr<comm::Request>> gathers_;  ///< by bucket; null when waited for
  device::Buffer memory_;
  device::Buffer bounds_memory_;
  Tensor master_;   ///< only with weights of a half type
  Tensor widened_;  ///< the gradient of the largest range that passes sum in a half type
  std::vector<OptimizerState> states_;
  Tensor norm_;
  std::vector<OwnedPart> parts_;  ///< owned_parts(), which LAMB's norms go over
  Tensor squares_;                ///< of LAMB: those of w of every parameter, then those of u
  std::int64_t step_ = 0;
};

}  // namespace trireme::optim
