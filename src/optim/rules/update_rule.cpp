#include "optim/rules/update_rule.hpp"

#include <cmath>

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

namespace {

/// AdamW (Loshchilov and Hutter 2019), and Adam with L2 regularisation (Kingma and Ba 2015).
class AdamW final : public UpdateRule {
 public:
  AdamW(device::Backend& backend, const OwnedShard& shard, const UpdateRuleConfig& config)
      : UpdateRule(backend, shard, config) {}

  void update(const OwnedRange& owned, const RuleStep& step) override {
    adamw(owned, step, config_.type == OptimizerType::adam);
  }
};

/// Stochastic gradient descent, with or without momentum (torch.optim.SGD's).
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

/// LAMB (You et al. 2020): Adam's direction u, scaled for each parameter by the trust ratio |w| /
/// |u|, whose norms are over all ranks that hold parts of the parameter.
class Lamb final : public UpdateRule {
 public:
  Lamb(device::Backend& backend, const OwnedShard& shard,
       const std::vector<model::Parameter>& table, comm::Communicator& world,
       const UpdateRuleConfig& config)
      : UpdateRule(backend, shard, config, 2 * table.size() * sizeof(double)),
        table_(table),
        world_(world),
        squares_(extra(), DType::f64, {static_cast<std::int64_t>(2 * table.size())}) {}

  /// Overwrites the gradients with the directions, and computes the trust ratios.
  void prepare(const RuleStep& step) override {
    for (const OwnedRange& owned : shard_.ranges())
      backend_.lamb_direction({.weight = shard_.master(owned),
                               .gradient = shard_.gradient(owned),
                               .m = state(0, owned),
                               .v = state(1, owned),
                               .beta1 = config_.beta1,
                               .beta2 = config_.beta2,
                               .eps = config_.eps,
                               .weight_decay = step.weight_decay,
                               .gradient_scale = step.gradient_scale,
                               .step = step.count,
                               .decayed = owned.decayed});
    trust_ratios_ = trust_ratios();
  }

  void update(const OwnedRange& owned, const RuleStep& step) override {
    for (const OwnedPart& part : shard_.parts()) {
      if (!owned.range.contains(part.weight_offset)) continue;
      backend_.sgd({.weight = shard_.master(part),
                    .gradient = shard_.summed_gradient(part),
                    .copy = shard_.rounded(part),
                    .learning_rate = step.learning_rate * trust_ratios_[index_of(part)]});
    }
  }

 private:
  std::size_t index_of(const OwnedPart& part) const { return part.parameter - table_.data(); }

  /// |w| / |u| of every parameter of the table, 1 where either is 0. Collective over the world.
  std::vector<double> trust_ratios() {
    const std::size_t count = table_.size();
    backend_.zero(squares_);
    for (const OwnedPart& part : shard_.parts()) {
      if (!part.primary) continue;
      const auto index = static_cast<std::int64_t>(index_of(part));
      const auto direction = static_cast<std::int64_t>(count) + index;
      backend_.squared_sum({.x = shard_.master(part), .out = squares_.rows(index, 1)});
      backend_.squared_sum({.x = shard_.summed_gradient(part), .out = squares_.rows(direction, 1)});
    }
    std::vector<double> squares(2 * count);
    backend_.download(squares.data(), squares_.data, squares_.bytes());
    world_.all_reduce(squares.data(), squares.size(), DType::f64, comm::Reduce::sum);
    std::vector<double> ratios(count, 1.0);
    for (std::size_t i = 0; i < count; ++i)
      if (squares[i] > 0.0 && squares[count + i] > 0.0)
        ratios[i] = std::sqrt(squares[i] / squares[count + i]);
    return ratios;
  }

  const std::vector<model::Parameter>& table_;
  comm::Communicator& world_;
  Tensor squares_;  ///< [2 P] f64: |w|^2 of every parameter, then |u|^2
  std::vector<double> trust_ratios_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(device::Backend& backend, const OwnedShard& shard,
                                             const std::vector<model::Parameter>& table,
                                             const OptimizerGroups& groups,
                                             const UpdateRuleConfig& config) {
  switch (config.type) {
    case OptimizerType::adamw:
    case OptimizerType::adam:
      return std::make_unique<AdamW>(backend, shard, config);
    case OptimizerType::sgd:
      return std::make_unique<Sgd>(backend, shard, config);
    case OptimizerType::lamb:
      return std::make_unique<Lamb>(backend, shard, table, groups.world, config);
    case OptimizerType::muon:
      return make_muon(backend, shard, groups, config);
  }
  throw InternalError("an unknown optimizer type");
}

}  // namespace trireme::optim
