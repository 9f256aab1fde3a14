// The update rules: what happens to each owned range.
#include <algorithm>
#include <cmath>

#include "optim/optimizer.hpp"

namespace trireme::optim {

void Optimizer::update(const UpdateStep& step) {
  ++step_;
  const double clip =
      config_.clip > 0.0 ? std::min(1.0, config_.clip / (step.gradient_norm + 1e-6)) : 1.0;
  const double gradient_scale = clip / step.loss_scale;
  const bool by_trust = config_.type == OptimizerType::lamb;
  std::vector<double> trust;
  if (by_trust) {
    for (const OwnedRange& owned : ranges_) direct_range(owned, step, gradient_scale);
    trust = trust_ratios();
  }
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (by_trust)
      step_range(ranges_[i], step.learning_rate, trust);
    else
      update_range(ranges_[i], step, gradient_scale);
    start_gathering(i);
  }
  finish_gathering();
}

void Optimizer::update_range(const OwnedRange& owned, const UpdateStep& step,
                             double gradient_scale) {
  const Tensor rounded = part(parameters_.weights(), owned.range);
  const Tensor copy = has_master_copy() ? rounded : Tensor{};
  const Tensor gradient = part(parameters_.gradients(), owned.range);
  const auto state = [&](std::size_t index) { return part(states_[index].tensor, owned.state()); };
  if (config_.type == OptimizerType::sgd) {
    backend_.sgd({.weight = master(owned),
                  .gradient = gradient,
                  .m = states_.empty() ? Tensor{} : state(0),
                  .copy = copy,
                  .learning_rate = step.learning_rate,
                  .momentum = config_.momentum,
                  .weight_decay = step.weight_decay,
                  .gradient_scale = gradient_scale,
                  .decayed = owned.decayed});
  } else {
    backend_.adamw({.weight = master(owned),
                    .gradient = gradient,
                    .m = state(0),
                    .v = state(1),
                    .copy = copy,
                    .learning_rate = step.learning_rate,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .eps = config_.eps,
                    .weight_decay = step.weight_decay,
                    .decay_in_gradient = config_.type == OptimizerType::adam,
                    .gradient_scale = gradient_scale,
                    .step = step_,
                    .decayed = owned.decayed});
  }
}

// ---- LAMB: the length of a parameter's step goes by norms over all ranks that hold parts of it

void Optimizer::direct_range(const OwnedRange& owned, const UpdateStep& step,
                             double gradient_scale) {
  backend_.lamb_direction({.weight = master(owned),
                           .gradient = part(parameters_.gradients(), owned.range),
                           .m = part(states_[0].tensor, owned.state()),
                           .v = part(states_[1].tensor, owned.state()),
                           .beta1 = config_.beta1,
                           .beta2 = config_.beta2,
                           .eps = config_.eps,
                           .weight_decay = step.weight_decay,
                           .gradient_scale = gradient_scale,
                           .step = step_,
                           .decayed = owned.decayed});
}

std::vector<double> Optimizer::trust_ratios() {
  const auto count = static_cast<std::int64_t>(parameters_.table().size());
  backend_.zero(squares_);
  for (const OwnedPart& owned : parts_) {
    if (!owned.primary) continue;
    const std::int64_t index = owned.parameter - parameters_.table().data();
    const Tensor weights = master(owned);
    backend_.squared_sum({.x = weights, .out = squares_.rows(index, 1)});
    backend_.squared_sum({.x = parameters_.gradients().rows(owned.weight_offset, weights.size()),
                          .out = squares_.rows(count + index, 1)});
  }
  std::vector<double> squares(2 * count);
  backend_.download(squares.data(), squares_.data, squares_.bytes());
  groups_.world.all_reduce(squares.data(), squares.size(), DType::f64, comm::Reduce::sum);
  std::vector<double> ratios(count, 1.0);
  for (std::int64_t i = 0; i < count; ++i)
    if (squares[i] > 0.0 && squares[count + i] > 0.0)
      ratios[i] = std::sqrt(squares[i] / squares[count + i]);
  return ratios;
}

void Optimizer::step_range(const OwnedRange& owned, double learning_rate,
                           const std::vector<double>& trust) {
  for (const OwnedPart& inner : parts_) {
    if (!owned.range.contains(inner.weight_offset)) continue;
    const Tensor weights = master(inner);
    const std::int64_t index = inner.parameter - parameters_.table().data();
    backend_.sgd({.weight = weights,
                  .gradient = parameters_.gradients().rows(inner.weight_offset, weights.size()),
                  .copy = has_master_copy()
                              ? parameters_.weights().rows(inner.weight_offset, weights.size())
                              : Tensor{},
                  .learning_rate = learning_rate * trust[index]});
  }
}

}  // namespace trireme::optim
