#include "optim/sharding/gradient_reducer.hpp"

#include <algorithm>

namespace trireme::optim {
namespace {

/// Where the parameters lie whose gradients are partial sums under sequence parallelism; adjacent
/// ones as one range.
std::vector<Range> sequence_parallel_ranges(const model::Placement& placement) {
  std::vector<Range> ranges;
  bool follows = false;
  for (const model::LocalParameter& local : placement.parameters) {
    const Range range{local.offset, local.offset + local.shape.size()};
    if (local.parameter->sequence_parallel && follows)
      ranges.back().end = range.end;
    else if (local.parameter->sequence_parallel)
      ranges.push_back(range);
    follows = local.parameter->sequence_parallel;
  }
  return ranges;
}

}  // namespace

GradientReducer::GradientReducer(device::Backend& backend, model::ParameterStore& parameters,
                                 const OptimizerGroups& groups, const Shards& shards, bool overlap)
    : parameters_(parameters),
      groups_(groups),
      shards_(shards),
      overlap_(overlap),
      copied_(backend, parameters, groups.tensor, shards, groups.data.rank()) {
  const auto& gradients = parameters.gradient_buffer();
  if (gradients.is_sharded())
    scatter_.emplace(backend, parameters.placement(), gradients, groups.data, shards, overlap);
  if (groups.sequence_parallel) sequence_ranges_ = sequence_parallel_ranges(parameters.placement());
  unreduced_ = buckets_to_reduce();
}

std::size_t GradientReducer::buckets_to_reduce() const {
  return scatter_ ? shards_.buckets_in({0, parameters_.placement().common_size}).size()
                  : shards_.buckets().size();
}

void GradientReducer::before_gradient(const Range& matrices) {
  if (scatter_) scatter_->open(matrices);
}

void GradientReducer::gradient_ready(const Range& matrices, bool complete) {
  if (scatter_)
    scatter_->close(matrices);
  else if (complete && overlap_)
    start(matrices.begin);
}

void GradientReducer::finish() {
  sum_tied_embedding();
  start(0);
  for (const auto& request : requests_) request->wait();
  requests_.clear();
  unreduced_ = buckets_to_reduce();
  if (scatter_) scatter_->finish();
  copied_.sum();
}

// Before the buckets: its two copies lie at different places of their stages' buffers, so they
// cannot be added after those buffers were scattered.
void GradientReducer::sum_tied_embedding() {
  if (!groups_.embedding) return;
  for (const model::LocalParameter& local : parameters_.placement().parameters) {
    if (!local.parameter->tied) continue;
    const Tensor gradient = slice(parameters_.gradient_buffer(), local);
    groups_.embedding->all_reduce(gradient.data, gradient.size(), gradient.dtype,
                                  comm::Reduce::sum);
  }
}

// A bucket's sum over the tensor ranks takes its place in the compute stream before its sum over
// the data ranks starts on another.
void GradientReducer::start(std::int64_t begin) {
  for (; unreduced_ > 0; --unreduced_) {
    const Range& bucket = shards_.buckets()[unreduced_ - 1];
    if (bucket.begin < begin) return;
    sum_sequence_parallel(bucket);
    if (groups_.data.size() == 1) continue;
    const Tensor gradient = parameters_.gradient_buffer().at(bucket);
    requests_.push_back(shards_.count() > 1
                            ? groups_.data.start_reduce_scatter(
                                  gradient.data, bucket.size() / shards_.count(), gradient.dtype)
                            : groups_.data.start_all_reduce(gradient.data, gradient.size(),
                                                            gradient.dtype, comm::Reduce::sum));
  }
}

void GradientReducer::sum_sequence_parallel(const Range& bucket) {
  for (const Range& range : sequence_ranges_) {
    const Range common{std::max(range.begin, bucket.begin), std::min(range.end, bucket.end)};
    if (common.size() <= 0) continue;
    const Tensor gradient = parameters_.gradient_buffer().at(common);
    groups_.sequence_parallel->all_reduce(gradient.data, gradient.size(), gradient.dtype,
                                          comm::Reduce::sum);
  }
}

}  // namespace trireme::optim
