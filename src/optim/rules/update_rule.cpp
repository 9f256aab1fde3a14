#include "optim/rules/update_rule.hpp"

namespace trireme::optim {

int state_count(const UpdateRuleConfig& config) {
  if (config.type == OptimizerType::sgd) return config.momentum > 0.0 ? 1 : 0;
  return 2;
}

UpdateRule::UpdateRule(device::Backend& backend, const OwnedShard& shard,
                       const UpdateRuleConfig& config, std::size_t extra_bytes)
    : backend_(backend), shard_(shard), config_(config) {
  constexpr const char* kNames[] = {"m", "v"};
  const Precision& precision = shard.precision();
  TRIREME_CHECK(precision.moments == precision.master,
                "optimizer state in {}, master weights in {}", name_of(precision.moments),
                name_of(precision.master));
  const std::size_t bytes = shard.elements() * size_of(precision.moments);
  const int count = state_count(config);
  if (count == 0 && extra_bytes == 0) return;
  memory_ = backend.allocate(count * bytes + extra_bytes, "optimizer state");
  auto* base = static_cast<std::byte*>(memory_.get());
  for (int i = 0; i < count; ++i)
    states_.push_back({kNames[i], {base + i * bytes, precision.moments, {shard.elements()}}});
  extra_ = base + count * bytes;
}

std::unique_ptr<UpdateRule> make_update_rule(device::Backend& backend, const OwnedShard& shard,
                                             const std::vector<model::Parameter>& table,
                                             comm::Communicator& world,
                                             const UpdateRuleConfig& config) {
  switch (config.type) {
    case OptimizerType::adamw:
    case OptimizerType::adam:
      return make_adamw(backend, shard, config);
    case OptimizerType::sgd:
      return make_sgd(backend, shard, config);
    case OptimizerType::lamb:
      return make_lamb(backend, shard, table, world, config);
    case OptimizerType::muon:
      break;
  }
  throw InternalError("an unknown optimizer type");
}

}  // namespace trireme::optim
