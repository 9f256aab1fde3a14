#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::optim {
namespace {

/// The buckets of `placement`. They end after what is common to all passes and after each layer,
/// whose gradients are complete at different times.
Shards make_shards(const model::Placement& placement, int data_ranks,
                   const OptimizerConfig& config) {
  std::vector<std::int64_t> ends{placement.common_size};
  for (const Range& layer : placement.layers) ends.push_back(layer.end);
  return {ends, config.bucket, config.zero == ZeroStage::none ? 1 : data_ranks};
}

/// `parameters`, which `config` must be able to update.
model::ParameterStore& checked(model::ParameterStore& parameters, const OptimizerConfig& config) {
  const bool is_sharded =
      parameters.weight_buffer().is_sharded() || parameters.gradient_buffer().is_sharded();
  TRIREME_CHECK(config.zero != ZeroStage::none || !is_sharded,
                "a rank that holds a shard of a matrix cannot keep the state of all of it");
  const Precision& precision = parameters.precision();
  TRIREME_CHECK(config.type != OptimizerType::lamb || precision.gradients == precision.master,
                "LAMB overwrites gradients with update directions: they must be summed in {}",
                name_of(precision.master));
  return parameters;
}

}  // namespace

std::size_t Optimizer::planned_bytes(const model::Placement& placement, const grid::Layout& layout,
                                     const OptimizerConfig& config, const Precision& precision) {
  const Shards shards = make_shards(placement, layout.data, config);
  const std::size_t state = placement.owned_size / shards.count() * size_of(precision.moments);
  return state_count(config.rule()) * state +
         OwnedShard::planned_bytes(placement, shards, precision) +
         CopiedGradients::planned_bytes(placement, layout.tensor, precision);
}

std::size_t Optimizer::checkpoint_bytes(const model::Placement& placement,
                                        const grid::Layout& layout, const OptimizerConfig& config,
                                        const Precision& precision) {
  const Shards shards = make_shards(placement, layout.data, config);
  return placement.owned_size / shards.count() *
         (size_of(precision.master) + state_count(config.rule()) * size_of(precision.moments));
}

Optimizer::Optimizer(device::Backend& backend, model::ParameterStore& parameters,
                     const OptimizerGroups& groups, const OptimizerConfig& config)
    : backend_(backend),
      world_(groups.world),
      clip_(config.clip),
      shards_(make_shards(checked(parameters, config).placement(), groups.data.size(), config)),
      shard_(backend, parameters, shards_, groups.data.rank()),
      rule_(make_update_rule(backend, shard_, parameters.table(), groups.world, config.rule())),
      reducer_(backend, parameters, groups, shards_, config.overlap_gradients),
      gatherer_(backend, parameters, groups.data, groups.embedding, shards_,
                config.overlap_parameters),
      norm_memory_(backend.allocate(sizeof(double), "gradient norm")),
      norm_(norm_memory_.get(), DType::f64, {1}) {}

void Optimizer::initialize(std::uint64_t seed) {
  for (const OwnedPart& owned : owned_parts())
    model::draw_initial_values(backend_, *owned.parameter, owned.slabs, seed, master(owned));
  gather_weights();
}

// ---- norms

template <typename Add>
double Optimizer::sum_over_owned(const Add& add) {
  backend_.zero(norm_);
  for (const OwnedRange& owned : shard_.ranges()) add(owned, norm_);
  double sum = 0.0;
  backend_.download(&sum, norm_.data, sizeof sum);
  return world_.all_reduce(sum, comm::Reduce::sum);
}

double Optimizer::gradient_norm(double loss_scale) {
  const double squares = sum_over_owned([&](const OwnedRange& owned, const Tensor& sum) {
    backend_.squared_sum({.x = shard_.gradient(owned), .out = sum, .counted = owned.counted});
  });
  return std::sqrt(squares) / loss_scale;
}

std::int64_t Optimizer::gradient_zeros() {
  return static_cast<std::int64_t>(sum_over_owned([&](const OwnedRange& owned, const Tensor& sum) {
    backend_.zero_count({.x = shard_.gradient(owned), .out = sum, .counted = owned.counted});
  }));
}

double Optimizer::parameter_norm() {
  return std::sqrt(sum_over_owned([&](const OwnedRange& owned, const Tensor& sum) {
    backend_.squared_sum({.x = shard_.master(owned), .out = sum, .counted = owned.counted});
  }));
}

// ---- updates

void Optimizer::update(const UpdateStep& step) {
  ++step_;
  const double clip = clip_ > 0.0 ? std::min(1.0, clip_ / (step.gradient_norm + 1e-6)) : 1.0;
  const RuleStep rule_step{.learning_rate = step.learning_rate,
                           .weight_decay = step.weight_decay,
                           .gradient_scale = clip / step.loss_scale,
                           .count = step_};
  rule_->prepare(rule_step);
  for (std::size_t i = 0; i < shard_.ranges().size(); ++i) {
    rule_->update(shard_.ranges()[i], rule_step);
    gatherer_.updated(i);
  }
  gatherer_.finish_update();
}

void Optimizer::gather_weights() {
  for (std::size_t i = 0; i < shard_.ranges().size(); ++i) {
    const OwnedRange& owned = shard_.ranges()[i];
    if (shard_.has_master_copy())
      backend_.cast({.x = shard_.master(owned), .out = shard_.weights(owned)});
    gatherer_.updated(i);
  }
  gatherer_.finish_update();
}

}  // namespace trireme::optim
