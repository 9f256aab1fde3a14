// Stochastic gradient descent, with or without momentum (torch.optim.SGD's).
#include "optim/rules/update_rule.hpp"

namespace trireme::optim {
namespace {

class Sgd final : public UpdateRule {
 public:
  Sgd(device::Backend& backend, const OwnedShard& shard, const UpdateRuleConfig& config)
      : UpdateRule(backend, shard, config) {}

  void update(const OwnedRange& owned, const RuleStep& step) override {
    backend_.sgd({.weight = shard_.master(owned),
                  .gradient = shard_.gradient(owned),
                  .m = states().empty() ? Tensor{} : state(0, owned),
                  .copy = shard_.rounded(owned),
                  .learning_rate = step.learning_rate,
                  .momentum = config_.momentum,
                  .weight_decay = step.weight_decay,
                  .gradient_scale = step.gradient_scale,
                  .decayed = owned.decayed});
  }
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(device::Backend& backend, const OwnedShard& shard,
                                     const UpdateRuleConfig& config) {
  return std::make_unique<Sgd>(backend, shard, config);
}

}  // namespace trireme::optim
