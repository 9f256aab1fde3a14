#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::optim {
namespace {

int shard_count(int data_ranks, bool shard_state) { return shard_state ? data_ranks : 1; }

/// The part of a flat tensor at `range`.
Tensor part(const Tensor& flat, const Range& range) { return flat.rows(range.begin, range.size()); }

}  // namespace

std::size_t Optimizer::planned_bytes(const model::Placement& placement, int data_ranks,
                                     bool shard_state, DType dtype) {
  return 2 * placement.owned_size / shard_count(data_ranks, shard_state) * size_of(dtype);
}

Optimizer::Optimizer(device::Backend& backend, model::ParameterStore& parameters,
                     const OptimizerGroups& groups, const OptimizerConfig& config)
    : backend_(backend),
      parameters_(parameters),
      groups_(groups),
      config_(config),
      shards_(parameters.placement().owned_size, config.bucket,
              shard_count(groups.data.size(), config.shard_state)) {
  const std::int64_t owned = parameters.placement().owned_size / shards_.count();
  const DType dtype = parameters.dtype();
  const std::size_t bytes = 2 * owned * size_of(dtype);
  memory_ = backend.allocate(bytes + sizeof(double), "optimizer state");
  auto* base = static_cast<std::byte*>(memory_.get());
  momentum_ = {base, dtype, {owned}};
  variance_ = {base + bytes / 2, dtype, {owned}};
  norm_ = {base + bytes, DType::f64, {1}};
  build_segments();
}

std::vector<OwnedPart> Optimizer::owned_parts() const {
  const int index = shards_.count() == 1 ? 0 : groups_.data.rank();
  const bool first_copy = shards_.count() > 1 || groups_.data.rank() == 0;
  std::vector<OwnedPart> parts;
  std::int64_t state_offset = 0;
  for (const Range& range : shards_.owned(index)) {
    for (const model::LocalParameter& local : parameters_.placement().parameters) {
      const std::int64_t begin = std::max(range.begin, local.offset);
      const std::int64_t end = std::min(range.end, local.offset + local.elements());
      if (local.shared || begin >= end) continue;
      parts.push_back(
          {.parameter = local.parameter,
           .boxes = grid::cut_boxes(local.boxes, begin - local.offset, end - local.offset),
           .weight_offset = begin,
           .state_offset = state_offset + begin - range.begin,
           .primary = local.primary && first_copy});
    }
    state_offset += range.size();
  }
  return parts;
}

void Optimizer::build_segments() {
  for (const OwnedPart& part : owned_parts()) {
    const std::int64_t size = grid::count_elements(part.boxes);
    segments_.push_back({.range = {part.weight_offset, part.weight_offset + size},
                         .state_offset = part.state_offset,
                         .weight_decay = part.parameter->weight_decay,
                         .counted = part.primary});
  }
}

void Optimizer::reduce_gradients() {
  // The tied embedding first: its two copies lie at different places of their stages' buffers, so
  // they cannot be added after those buffers were scattered.
  if (groups_.embedding) {
    for (const model::LocalParameter& local : parameters_.placement().parameters) {
      if (!local.parameter->tied) continue;
      const Tensor gradient = slice(parameters_.gradients(), local);
      groups_.embedding->all_reduce(gradient.data, gradient.size(), gradient.dtype,
                                    comm::Reduce::sum);
    }
  }
  if (groups_.data.size() == 1) return;
  for (const Range& bucket : shards_.buckets()) {
    const Tensor gradient = part(parameters_.gradients(), bucket);
    if (shards_.count() > 1)
      groups_.data.reduce_scatter(gradient.data, bucket.size() / shards_.count(), gradient.dtype);
    else
      groups_.data.all_reduce(gradient.data, gradient.size(), gradient.dtype, comm::Reduce::sum);
  }
}

double Optimizer::gradient_norm() {
  backend_.zero(norm_);
  for (const Segment& segment : segments_)
    if (segment.counted)
      backend_.squared_sum({.x = part(parameters_.gradients(), segment.range), .out = norm_});
  double squares = 0.0;
  backend_.download(&squares, norm_.data, sizeof squares);
  return std::sqrt(groups_.world.all_reduce(squares, comm::Reduce::sum));
}

void Optimizer::update(double learning_rate, double gradient_norm) {
  ++step_;
  const double scale =
      config_.clip > 0.0 ? std::min(1.0, config_.clip / (gradient_norm + 1e-6)) : 1.0;
  for (const Segment& segment : segments_) {
    const Range state{segment.state_offset, segment.state_offset + segment.range.size()};
    backend_.adamw({.weight = part(parameters_.weights(), segment.range),
                    .gradient = part(parameters_.gradients(), segment.range),
                    .m = part(momentum_, state),
                    .v = part(variance_, state),
                    .learning_rate = learning_rate,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .eps = config_.eps,
                    .weight_decay = segment.weight_decay ? config_.weight_decay : 0.0,
                    .gradient_scale = scale,
                    .step = step_});
  }
  gather_weights();
}

void Optimizer::gather_weights() {
  if (shards_.count() > 1) {
    for (const Range& bucket : shards_.buckets()) {
      const Tensor weights = part(parameters_.weights(), bucket);
      groups_.data.all_gather(weights.data, bucket.size() / shards_.count(), weights.dtype);
    }
  }
  if (!groups_.embedding) return;
  for (const model::LocalParameter& local : parameters_.placement().parameters) {
    if (!local.parameter->tied) continue;
    const Tensor weight = slice(parameters_.weights(), local);
    groups_.embedding->broadcast(weight.data, weight.bytes(), /*root=*/0);
  }
}

}  // namespace trireme::optim
