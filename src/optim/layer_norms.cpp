#include "optim/layer_norms.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::optim {
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
