#include "optim/rules/update_rule.hpp"

namespace trireme::optim {

namespace {

int state_count(const UpdateRuleConfig& config) {
  if (config.type == OptimizerType::sgd) return config.momentum > 0.0 ? 1 : 0;
  return 2;
}

/// Whether state `index` belongs to matrices of layers as well.
bool is_of_matrices(const UpdateRuleConfig& config, int index) {
  return config.type != OptimizerType::muon || index == 0;
}

}  // namespace

std::int64_t state_elements(const UpdateRuleConfig& config, std::int64_t elements,
                            std::int64_t common) {
  std::int64_t sum = 0;
  for (int i = 0; i < state_count(config); ++i)
    sum += is_of_matrices(config, i) ? elements : common;
  return sum;
}

UpdateRule::UpdateRule(device::Backend& backend, const OwnedShard& shard,
                       const UpdateRuleConfig& config, std::size_t extra_bytes)
    : backend_(backend), shard_(shard), config_(config) {
  constexpr const char* kNames[] = {"m", "v"};
  const Precision& precision = shard.precision();
  TRIREME_CHECK(precision.moments == precision.master,
                "optimizer state in {}, master weights in {}", name_of(precision.moments),
                name_of(precision.master));
  const std::int64_t elements = state_elements(config, shard.elements(), shard.common_elements());
  // A stage without layers has states of no elements: checkpoints list them on all ranks alike.
  if (elements > 0 || extra_bytes > 0)
    memory_ =
        backend.allocate(elements * size_of(precision.moments) + extra_bytes, "optimizer state");
  auto* next = static_cast<std::byte*>(memory_.get());
  for (int i = 0; i < state_count(config); ++i) {
    const bool of_matrices = is_of_matrices(config, i);
    const std::int64_t size = of_matrices ? shard.elements() : shard.common_elements();
    states_.push_back({kNames[i], {next, precision.moments, {size}}, of_matrices});
    next += states_.back().tensor.bytes();
  }
  extra_ = next;
}

void UpdateRule::adamw(const OwnedRange& owned, const RuleStep& step, bool decay_in_gradient) {
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
                  .decay_in_gradient = decay_in_gradient,
                  .gradient_scale = step.gradient_scale,
                  .step = step.count,
                  .decayed = owned.decayed});
}

std::unique_ptr<UpdateRule> make_update_rule(device::Backend& backend, const OwnedShard& shard,
                                             const std::vector<model::Parameter>& table,
                                             const OptimizerGroups& groups,
                                             const UpdateRuleConfig& config) {
  switch (config.type) {
    case OptimizerType::adamw:
    case OptimizerType::adam:
      return make_adamw(backend, shard, config);
    case OptimizerType::sgd:
      return make_sgd(backend, shard, config);
    case OptimizerType::lamb:
      return make_lamb(backend, shard, table, groups.world, config);
    case OptimizerType::muon:
      return make_muon(backend, shard, groups, config);
  }
  throw InternalError("an unknown optimizer type");
}

}  // namespace trireme::optim
