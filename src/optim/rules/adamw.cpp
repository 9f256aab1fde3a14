// AdamW (Loshchilov and Hutter 2019), and Adam with L2 regularisation (Kingma and Ba 2015).
#include "optim/rules/update_rule.hpp"

namespace trireme::optim {
namespace {

class AdamW final : public UpdateRule {
 public:
  AdamW(device::Backend& backend, const OwnedShard& shard, const UpdateRuleConfig& config)
      : UpdateRule(backend, shard, config) {}

  void update(const OwnedRange& owned, const RuleStep& step) override {
    backend_.adamw({.weight = shard_.master(owned),
                    .gradient = shard_.gradient(owned),
                    .m = state(0, owned),
                    .v = state(1, owned),
                    .copy = shard_.rounded(owned),
                    .learning_rate = step.learning_rate,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .eps = config_.eps,
                    .weight_decay = step.weight_decay,
                    .decay_in_gradient = config_.type == OptimizerType::adam,
                    .gradient_scale = step.gradient_scale,
                    .step = step.count,
                    .decayed = owned.decayed});
  }
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(device::Backend& backend, const OwnedShard& shard,
                                       const UpdateRuleConfig& config) {
  return std::make_unique<AdamW>(backend, shard, config);
}

}  // namespace trireme::optim
