// One optimizer step: gradient reduction over ranks, global norm, clipping, update, weight gather;
// and the norms of each layer around it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "model/parameters/store.hpp"
#include "optim/rules/update_rule.hpp"
#include "optim/sharding/communication.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

using model::ZeroStage;

// ---- norms of each layer's gradient, update and weights

/// L2 norms over all parameters of each layer, then of the first stage (embeddings) and of the last
/// one (final norm, output projection), each logical element counted once: of the gradient before
/// clipping, of the change of the master weights, and of these after it.
struct LayerNorms {
  std::vector<double> gradient, update, parameters;
};

/// Computes them around an update, in fp64.
class LayerNormSums {
 public:
  /// All must outlive this; `table` is the whole model's.
  LayerNormSums(device::Backend& backend, const OwnedShard& shard,
                const std::vector<model::Parameter>& table, comm::Communicator& world);
  /// Bytes that this allocates on a rank with `shards`, in a model of `layers`.
  static std::size_t planned_bytes(const Shards& shards, int layers, const Precision& precision);

  /// Before the update: adds the gradients.
  void begin();
  /// Before and after `owned` is updated.
  void before(const OwnedRange& owned);
  void after(const OwnedRange& owned);
  /// The norms, with `loss_scale` taken out of the gradient's. Collective over the world; the same
  /// everywhere.
  LayerNorms finish(double loss_scale);

 private:
  enum Kind { kGradient, kUpdate, kParameters, kKinds };
  /// Adds the squares of `x`, the elements of `part`, which the rank counts if it is their primary.
  void add(Kind kind, const OwnedPart& part, const Tensor& x);
  /// Calls use(part, place) for the parts of `owned`; place is the first element's in the range.
  template <typename Use>
  void for_parts(const OwnedRange& owned, const Use& use) const;

  device::Backend& backend_;
  const OwnedShard& shard_;
  comm::Communicator& world_;
  std::int64_t layers_;
  device::Buffer memory_;
  Tensor squares_;  ///< [kKinds, layers + 2] f64
  Tensor before_;   ///< the master weights of a range before its update
};

// ---- the step

/// The deck's `optimizer` section, and how the state is sharded.
struct OptimizerConfig {
  OptimizerType type = OptimizerType::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;  ///< of sgd and muon
  MuonScale muon_scale = MuonScale::match_rms;
  bool nesterov = true;                         ///< of muon
  bool muon_bf16 = false;                       ///< as in UpdateRuleConfig
  deck::GroupFactors rate = {};                 ///< of the learning rate
  deck::GroupFactors decay = {.vectors = 0.0};  ///< of the weight decay
  bool layer_norms = false;                     ///< updates may be asked for LayerNorms
  double clip = 1.0;                            ///< largest global gradient norm; 0 does not clip
  /// From optimizer_state on each data rank keeps the state of its shard and updates it.
  ZeroStage zero = ZeroStage::optimizer_state;
  std::int64_t bucket = 25'000'000;  ///< elements reduced at a time
  bool overlap_gradients = true;     ///< overlap the reduction with backward passes
  bool overlap_parameters = true;    ///< overlap the weight gather with passes

  UpdateRuleConfig rule() const {
    return {type, beta1, beta2, eps, momentum, muon_scale, nesterov, muon_bf16};
  }
};

/// The arguments of one update.
struct UpdateStep {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double gradient_norm = 0.0;  ///< as gradient_norm() returned it
  double loss_scale = 1.0;     ///< that the gradients are multiplied by
};

/// An update rule over a rank's shard of the parameters, with the communication around it.
///
/// As the ParameterHooks of all passes it starts to reduce a bucket of gradients as soon as the
/// bucket is complete, and makes a pass wait for the weights that it reads. If `parameters` shards
/// layers' matrices or their gradients over the data ranks, these hooks are required, and passes
/// are collective over the data ranks.
class Optimizer final : public model::ParameterHooks {
 public:
  /// Allocates the state and the master copy. `parameters` and the groups must outlive it. Throws
  /// InternalError when matrices are sharded and their state is not, and for LAMB with 16-bit
  /// gradients, which it cannot overwrite with its directions.
  Optimizer(device::Backend& backend, model::ParameterStore& parameters,
            const OptimizerGroups& groups, const OptimizerConfig& config);

  /// Bytes that the optimizer of a rank with `placement` allocates: state, master copy of 16-bit
  /// weights, buffers that gradients are converted and summed in.
  static std::size_t planned_bytes(const model::Placement& placement, const grid::Layout& layout,
                                   const OptimizerConfig& config, const Precision& precision);

  /// Bytes of weights and state that a rank with `placement` writes to a checkpoint, at most.
  static std::size_t checkpoint_bytes(const model::Placement& placement, const grid::Layout& layout,
                                      const OptimizerConfig& config, const Precision& precision);

  /// Draws the initial weights (ParameterStore::initialize) of the owned parts into the master copy
  /// and gathers them. Collective as update().
  void initialize(std::uint64_t seed);

  void before_use(const Range& range, const Range& next) override {
    gatherer_.before_use(range, next);
  }
  void before_gradient(const Range& matrices) override { reducer_.before_gradient(matrices); }
  void gradient_ready(const Range& matrices, bool complete) override {
    reducer_.gradient_ready(matrices, complete);
  }

  /// Sums the gradients over the data ranks, the tied embedding's over first and last stage, and
  /// partial sums over the tensor ranks. Under ZeRO-1 only the owned shard of each bucket is valid
  /// afterwards. Collective over the data, embedding and tensor groups.
  void reduce_gradients() { reducer_.finish(); }

  /// L2 norm of the whole model's gradient, each logical element counted once, after division by
  /// the loss scale that the gradients carry. Not finite where any gradient is not. Collective over
  /// the world; the same bits everywhere.
  double gradient_norm(double loss_scale = 1.0);

  /// The number of zeros in the whole model's reduced gradient, before update(), and the L2 norm of
  /// the master weights; each logical element counted once. Collective over
  /// the world; the same everywhere.
  std::int64_t gradient_zeros();
  double parameter_norm();

  /// One update with the reduced gradients, divided by the loss scale and scaled by
  /// min(1, clip / (norm + 1e-6)); then gathers the new weights. Collective over the data and
  /// embedding groups, LAMB's over the world. Gradients may be overwritten. Source of the
  /// coefficient: torch.nn.utils.clip_grad_norm_. With `norms`, which config.layer_norms must
  /// allow, those of this update are computed; collective over the world.
  void update(const UpdateStep& step, LayerNorms* norms = nullptr);

  /// Rounds the master copy into the weights and gathers all weights, after the owned parts were
  /// loaded from a checkpoint. Collective as update().
  void gather_weights();

  /// Updates so far; part of a checkpoint.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

  /// What the update rule keeps: see UpdateRule.
  const std::vector<OptimizerState>& states() const { return rule_->states(); }

  /// What this rank owns, parameter by parameter.
  const std::vector<OwnedPart>& owned_parts() const { return shard_.parts(); }

  /// Of `part`: the master weights, which a checkpoint saves; the weights as passes read them; the
  /// gradient as passes sum it.
  Tensor master(const OwnedPart& part) const { return shard_.master(part); }
  /// All of a parameter's master weights on this rank, as OwnedShard::whole_master().
  Tensor whole_master(const std::string& name) const { return shard_.whole_master(name); }
  Tensor weights(const OwnedPart& part) const { return shard_.weights(part); }
  Tensor gradient(const OwnedPart& part) const { return shard_.summed_gradient(part); }

 private:
  /// Calls add(range, sum), which adds to `sum` [1] f64, for each owned range; returns the total
  /// over the world.
  template <typename Add>
  double sum_over_owned(const Add& add);

  /// A part of an owned range, and its factors of learning rate and weight decay.
  struct Segment {
    OwnedRange owned;
    double rate = 1.0;
    double decay = 1.0;
  };
  std::vector<Segment> segments_of(const OwnedRange& owned, const OptimizerConfig& config) const;

  device::Backend& backend_;
  comm::Communicator& world_;
  double clip_;
  Shards shards_;
  OwnedShard shard_;
  std::vector<std::vector<Segment>> segments_;  ///< of each owned range
  std::unique_ptr<UpdateRule> rule_;
  std::unique_ptr<LayerNormSums> norms_;  ///< null unless config.layer_norms
  GradientReducer reducer_;
  WeightGatherer gatherer_;
  device::Buffer norm_memory_;
  Tensor norm_;  ///< [1] f64
  std::int64_t step_ = 0;
};

}  // namespace trireme::optim
