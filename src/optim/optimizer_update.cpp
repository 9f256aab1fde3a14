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
  const auto state = [&](std::size_t index) { return owned.in(states_[index].tensor); };
  if (config_.type == OptimizerType::sgd) {
    backend_.sgd({.weight = master(owned),
                  .gradient = gradient(owned),
                  .m = states_.empty() ? Tensor{} : state(0),
                  .copy = rounded(owned),
                  .learning_rate = step.learning_rate,
                  .momentum = config_.momentum,
                  .weight_decay = step.weight_decay,
                  .gradient_scale = gradient_scale,
                  .decayed = owned.decayed});
  } else {
    backend_.adamw({.weight = master(owned),
                    .gradient = gradient(owned),
                    .m = state(0),
                    .v = state(1),
                    .copy = rounded(owned),
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
                           .gradient = gradient(owned),
                           .m = owned.in(states_[0].tensor),
                           .v = owned.in(states_[1].tensor),
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
    backend_.squared_sum({.x = master(owned), .out = squares_.rows(index, 1)});
    backend_.squared_sum({.x = gradient(owned), .out = squares_.rows(count + index, 1)});
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
    const std::int64_t index = inner.parameter - parameters_.table().data();
    backend_.sgd({.weight = master(inner),
                  .gradient = gradient(inner),
                  .copy = has_master_copy() ? weights(inner) : Tensor{},
                  .learning_rate = learning_rate * trust[index]});
  }
}

}  // namespace trireme::optim
