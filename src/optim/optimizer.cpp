#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

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

double factor_of(const deck::GroupFactors& factors, model::ParameterGroup group) {
  switch (group) {
    case model::ParameterGroup::embedding:
      return factors.embedding;
    case model::ParameterGroup::matrix:
      return factors.matrices;
    case model::ParameterGroup::head:
      return factors.head;
    case model::ParameterGroup::vector:
      return factors.vectors;
  }
  throw InternalError("an unknown group of parameters");
}

std::size_t state_bytes(const model::Placement& placement, const Shards& shards,
                        const OptimizerConfig& config, const Precision& precision) {
  return state_elements(config.rule(), placement.owned_size / shards.count(),
                        placement.common_size / shards.count()) *
         size_of(precision.moments);
}

}  // namespace

std::size_t Optimizer::planned_bytes(const model::Placement& placement, const grid::Layout& layout,
                                     const OptimizerConfig& config, const Precision& precision) {
  const Shards shards = make_shards(placement, layout.data, config);
  const std::size_t muon =
      config.type == OptimizerType::muon
          ? muon_bytes(placement, layout.data, layout.tensor, config.rule(), precision)
          : 0;
  const int layers = std::accumulate(layout.partition.begin(), layout.partition.end(), 0);
  return state_bytes(placement, shards, config, precision) + muon +
         OwnedShard::planned_bytes(placement, shards, precision) +
         CopiedGradients::planned_bytes(placement, layout.tensor, precision) +
         (config.layer_norms ? LayerNormSums::planned_bytes(shards, layers, precision) : 0);
}

std::size_t Optimizer::checkpoint_bytes(const model::Placement& placement,
                                        const grid::Layout& layout, const OptimizerConfig& config,
                                        const Precision& precision) {
  const Shards shards = make_shards(placement, layout.data, config);
  return placement.owned_size / shards.count() * size_of(precision.master) +
         state_bytes(placement, shards, config, precision);
}

Optimizer::Optimizer(device::Backend& backend, model::ParameterStore& parameters,
                     const OptimizerGroups& groups, const OptimizerConfig& config)
    : backend_(backend),
      world_(groups.world),
      clip_(config.clip),
      shards_(make_shards(checked(parameters, config).placement(), groups.data.size(), config)),
      shard_(backend, parameters, shards_, groups.data.rank()),
      rule_(make_update_rule(backend, shard_, parameters.table(), groups, config.rule())),
      reducer_(backend, parameters, groups, shards_, config.overlap_gradients),
      gatherer_(backend, parameters, groups.data, groups.embedding, shards_,
                config.overlap_parameters),
      norm_memory_(backend.allocate(sizeof(double), "gradient norm")),
      norm_(norm_memory_.get(), DType::f64, {1}) {
  for (const OwnedRange& owned : shard_.ranges()) segments_.push_back(segments_of(owned, config));
  if (config.layer_norms)
    norms_ = std::make_unique<LayerNormSums>(backend, shard_, parameters.table(), groups.world);
}

std::vector<Optimizer::Segment> Optimizer::segments_of(const OwnedRange& owned,
                                                       const OptimizerConfig& config) const {
  const OptimizerConfig usual;
  if (config.rate == usual.rate && config.decay == usual.decay) return {Segment{.owned = owned}};
  // LAMB's directions of all parameters are computed before its updates, with one weight decay.
  TRIREME_CHECK(config.type != OptimizerType::lamb, "LAMB has one learning rate");
  if (owned.range.begin >= shard_.placement().common_size)
    return {Segment{owned, config.rate.matrices, config.decay.matrices}};
  std::vector<Segment> segments;
  for (const OwnedPart& part : shard_.parts()) {
    if (!owned.range.contains(part.weight_offset)) continue;
    const model::ParameterGroup group = group_of(*part.parameter);
    const double rate = factor_of(config.rate, group);
    const bool decays = part.parameter->weight_decay || group == model::ParameterGroup::vector;
    const double decay = decays ? factor_of(config.decay, group) : 0.0;
    if (!segments.empty() && segments.back().rate == rate && segments.back().decay == decay)
      segments.back().owned.range.end = part.range().end;  // and the padding between the two
    else
      segments.push_back({{.range = part.range(), .state_offset = part.state_offset}, rate, decay});
  }
  return segments;
}

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

void Optimizer::update(const UpdateStep& step, LayerNorms* norms) {
  TRIREME_CHECK(!norms || norms_, "norms of layers were not planned");
  ++step_;
  const double clip = clip_ > 0.0 ? std::min(1.0, clip_ / (step.gradient_norm + 1e-6)) : 1.0;
  const RuleStep rule_step{.learning_rate = step.learning_rate,
                           .weight_decay = step.weight_decay,
                           .gradient_scale = clip / step.loss_scale,
                           .count = step_};
  if (norms) norms_->begin();
  rule_->prepare(rule_step);
  for (std::size_t i = 0; i < shard_.ranges().size(); ++i) {
    if (norms) norms_->before(shard_.ranges()[i]);
    for (const Segment& segment : segments_[i]) {
      RuleStep scaled = rule_step;
      scaled.learning_rate *= segment.rate;
      scaled.weight_decay *= segment.decay;
      rule_->update(segment.owned, scaled);
    }
    gatherer_.updated(i);
    if (norms) norms_->after(shard_.ranges()[i]);
  }
  gatherer_.finish_update();
  if (norms) *norms = norms_->finish(step.loss_scale);
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

// ---- norms of layers

namespace {

/// Bytes of the sums for `layers`, a multiple of what backends align memory to.
std::size_t sums_bytes(std::int64_t layers) {
  return (3 * (layers + 2) * sizeof(double) + 255) / 256 * 256;
}

}  // namespace

std::size_t LayerNormSums::planned_bytes(const Shards& shards, int layers,
                                         const Precision& precision) {
  std::int64_t largest = 0;
  for (const Range& bucket : shards.buckets()) largest = std::max(largest, bucket.size());
  return sums_bytes(layers) + largest / shards.count() * size_of(precision.master);
}

LayerNormSums::LayerNormSums(device::Backend& backend, const OwnedShard& shard,
                             const std::vector<model::Parameter>& table, comm::Communicator& world)
    : backend_(backend), shard_(shard), world_(world), layers_(0) {
  for (const model::Parameter& parameter : table)
    layers_ = std::max<std::int64_t>(layers_, parameter.layer + 1);
  std::int64_t largest = 0;
  for (const OwnedRange& owned : shard.ranges()) largest = std::max(largest, owned.range.size());
  const DType master = shard.precision().master;
  memory_ = backend.allocate(sums_bytes(layers_) + largest * size_of(master), "layers' norms");
  auto* base = static_cast<std::byte*>(memory_.get());
  squares_ = {base, DType::f64, {kKinds * (layers_ + 2)}};
  before_ = {base + sums_bytes(layers_), master, {largest}};
}

template <typename Use>
void LayerNormSums::for_parts(const OwnedRange& owned, const Use& use) const {
  for (const OwnedPart& part : shard_.parts())
    if (owned.range.contains(part.weight_offset)) use(part, part.weight_offset - owned.range.begin);
}

void LayerNormSums::add(Kind kind, const OwnedPart& part, const Tensor& x) {
  if (!part.primary) return;
  std::int64_t place = part.parameter->layer;
  if (part.parameter->stage == model::StagePlacement::first_stage) place = layers_;
  if (part.parameter->stage == model::StagePlacement::last_stage) place = layers_ + 1;
  backend_.squared_sum({.x = x, .out = squares_.rows(kind * (layers_ + 2) + place, 1)});
}

void LayerNormSums::begin() {
  backend_.zero(squares_);
  for (const OwnedRange& owned : shard_.ranges()) {
    const Tensor gradient = shard_.gradient(owned);
    for_parts(owned, [&](const OwnedPart& part, std::int64_t place) {
      add(kGradient, part, gradient.rows(place, part.elements()));
    });
  }
}

void LayerNormSums::before(const OwnedRange& owned) {
  const Tensor master = shard_.master(owned);
  backend_.copy(before_.data, master.data, master.bytes());
}

void LayerNormSums::after(const OwnedRange& owned) {
  const Tensor update = before_.rows(0, owned.range.size());
  // before - after, in place.
  backend_.sgd({.weight = update, .gradient = shard_.master(owned), .learning_rate = 1.0});
  for_parts(owned, [&](const OwnedPart& part, std::int64_t place) {
    add(kUpdate, part, update.rows(place, part.elements()));
    add(kParameters, part, shard_.master(part));
  });
}

LayerNorms LayerNormSums::finish(double loss_scale) {
  std::vector<double> sums(static_cast<std::size_t>(squares_.size()));
  backend_.download(sums.data(), squares_.data, squares_.bytes());
  world_.all_reduce(sums.data(), sums.size(), DType::f64, comm::Reduce::sum);
  for (double& sum : sums) sum = std::sqrt(sum);
  LayerNorms norms;
  const auto size = static_cast<std::ptrdiff_t>(layers_ + 2);
  norms.gradient.assign(sums.begin(), sums.begin() + size);
  norms.update.assign(sums.begin() + size, sums.begin() + 2 * size);
  norms.parameters.assign(sums.begin() + 2 * size, sums.end());
  for (double& norm : norms.gradient) norm /= loss_scale;
  return norms;
}

}  // namespace trireme::optim
