// LAMB (You et al. 2020): Adam's direction u, scaled for each parameter by the trust ratio |w| /
// |u|, whose norms are over all ranks that hold parts of the parameter.
#include <cmath>

#include "optim/rules/update_rule.hpp"

namespace trireme::optim {
namespace {

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

std::unique_ptr<UpdateRule> make_lamb(device::Backend& backend, const OwnedShard& shard,
                                      const std::vector<model::Parameter>& table,
                                      comm::Communicator& world, const UpdateRuleConfig& config) {
  return std::make_unique<Lamb>(backend, shard, table, world, config);
}

}  // namespace trireme::optim
