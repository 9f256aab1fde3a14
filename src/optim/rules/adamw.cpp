// AdamW (Loshchilov and Hutter 2019), and Adam with L2 regularisation (Kingma and Ba 2015).
#include "optim/rules/update_rule.hpp"

namespace trireme::optim {
namespace {

class AdamW final : public UpdateRule {
 public:
  AdamW(device::Backend& backend, const OwnedShard& shard, const UpdateRuleConfig& config)
      : UpdateRule(backend, shard, config) {}

  void update(const OwnedRange& owned, const RuleStep& step) override {
    adamw(owned, step, config_.type == OptimizerType::adam);
  }
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(device::Backend& backend, const OwnedShard& shard,
                                       const UpdateRuleConfig& config) {
  return std::make_unique<AdamW>(backend, shard, config);
}

}  // namespace trireme::optim
