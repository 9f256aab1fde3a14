// The update rules: the new weights of a rank's shard from its gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "deck/choices.hpp"
#include "optim/sharding/communication.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// The update rules; see the kernels AdamW, Sgd and LambDirection for their formulas. Adam is AdamW
/// with the weight decay in the gradient.
using deck::OptimizerType;

/// What Muon multiplies the orthogonalized momentum of a matrix [m, n] by: match_rms 0.2
/// sqrt(max(m, n)), whose updates are as large as AdamW's, so that rates carry over (Liu et al.
/// 2025, section 2.2); spectral sqrt(max(1, m / n)), with separate rates (Jordan et al. 2024).
using deck::MuonScale;

/// The hyperparameters of all rules.
struct UpdateRuleConfig {
  OptimizerType type = OptimizerType::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;  ///< of sgd and muon
  MuonScale muon_scale = MuonScale::match_rms;
  bool nesterov = true;    ///< of muon
  bool muon_bf16 = false;  ///< Newton-Schulz in bf16 rather than in the master weights' type
};

/// The arguments of one step of a rule.
struct RuleStep {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;  ///< the clip coefficient divided by the loss scale
  std::int64_t count = 1;       ///< steps so far, this one included
};

/// State that a rule keeps for every owned element.
struct OptimizerState {
  std::string name;         ///< "m" or "v", its group in a checkpoint
  Tensor tensor;            ///< of the owned ranges, one after another
  bool of_matrices = true;  ///< false: of the ranges before the matrices of layers alone
};

/// One update rule with its state.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  /// Called once per step before the first update(): work that reads all gradients. Collective over
  /// the world.
  virtual void prepare(const RuleStep& step) { (void)step; }
  /// Updates the master weights of `owned` and rounds them into the 16-bit ones, if any. May
  /// overwrite the gradient.
  virtual void update(const OwnedRange& owned, const RuleStep& step) = 0;

  /// The first moment or momentum "m", then the second moment "v".
  const std::vector<OptimizerState>& states() const { return states_; }

 protected:
  /// Allocates and zeroes the states of `config` and `extra_bytes` after them. `shard` and
  /// `backend` must outlive it.
  UpdateRule(device::Backend& backend, const OwnedShard& shard, const UpdateRuleConfig& config,
             std::size_t extra_bytes = 0);

  /// The `extra_bytes` of memory, for other buffers of a rule.
  void* extra() const { return extra_; }
  /// The part of state `index` that belongs to `owned`.
  Tensor state(std::size_t index, const OwnedRange& owned) const {
    return owned.in(states_[index].tensor);
  }
  /// Updates `owned` by AdamW, whose moments are states 0 and 1, or with `decay_in_gradient` by
  /// Adam with L2 regularisation.
  void adamw(const OwnedRange& owned, const RuleStep& step, bool decay_in_gradient = false);

  device::Backend& backend_;
  const OwnedShard& shard_;
  const UpdateRuleConfig config_;

 private:
  device::Buffer memory_;
  std::vector<OptimizerState> states_;
  void* extra_ = nullptr;
};

/// Elements of all states of a rank that owns `elements`, `common` of them not in matrices of
/// layers: twice as many; of sgd as many with momentum, else 0; of muon matrices have no second
/// moment.
std::int64_t state_elements(const UpdateRuleConfig& config, std::int64_t elements,
                            std::int64_t common);

/// The rule of `config` over `shard`, of the parameters in `table`. All must outlive it.
std::unique_ptr<UpdateRule> make_update_rule(device::Backend& backend, const OwnedShard& shard,
                                             const std::vector<model::Parameter>& table,
                                             const OptimizerGroups& groups,
                                             const UpdateRuleConfig& config);

/// The type that Muon orthogonalizes matrices in, the factor of one of `rows` by `columns`, and the
/// scratch memory of a rank.
DType muon_type(const UpdateRuleConfig& config, const Precision& precision);
double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t columns);
std::size_t muon_bytes(const model::Placement& placement, int data_ranks, int tensor_ranks,
                       const UpdateRuleConfig& config, const Precision& precision);

/// The factory of the rule that has its own file.
std::unique_ptr<UpdateRule> make_muon(device::Backend& backend, const OwnedShard& shard,
                                      const OptimizerGroups& groups,
                                      const UpdateRuleConfig& config);

}  // namespace trireme::optim
