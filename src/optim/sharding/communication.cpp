#include "optim/sharding/communication.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

constexpr std::int64_t kMaxElements = 1 << 18;  ///< summed at a time

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

/// Registers a buffer whose parts the data ranks exchange.
std::unique_ptr<comm::RegisteredBuffer> registration(comm::Communicator& data,
                                                     const model::ParameterBuffer& buffer) {
  return data.register_buffer(buffer.memory().data(), buffer.memory().size());
}

}  // namespace

// The buffer starts with zeros in the shards of other ranks and with the kept gradient in this
// rank's own: the sum over ranks counts every pass once.
void LayerGradientScatter::open(const Range& matrices) {
  LayerBuffers::Content& content = layers_.content_of(matrices);
  keep(content);
  content.matrices = matrices;
  layers_.backend.zero(layers_.memory.at(matrices));
  copy_own(matrices, Direction::to_buffer);
}

void LayerGradientScatter::close(const Range& matrices) {
  LayerBuffers::Content& content = layers_.content_of(matrices);
  for (const Range& bucket : layers_.shards.buckets_in(matrices)) {
    const Tensor gradient = layers_.memory.at(bucket);
    content.requests.push_back(layers_.data.start_reduce_scatter(
        gradient.data, bucket.size() / layers_.shards.count(), gradient.dtype));
  }
  if (!layers_.overlap) keep(content);
}

void LayerGradientScatter::finish() {
  for (LayerBuffers::Content& content : layers_.contents) keep(content);
}

void LayerGradientScatter::keep(LayerBuffers::Content& content) {
  if (content.requests.empty()) return;
  content.wait();
  copy_own(content.matrices, Direction::from_buffer);
}

void LayerGradientScatter::copy_own(const Range& matrices, Direction direction) const {
  for (const Range& bucket : layers_.shards.buckets_in(matrices)) {
    const Tensor passing = layers_.passing(bucket), kept = layers_.kept(bucket);
    const auto [to, from] =
        direction == Direction::to_buffer ? std::pair(passing, kept) : std::pair(kept, passing);
    layers_.backend.copy(to.data, from.data, to.bytes());
  }
}

CopiedGradients::CopiedGradients(device::Backend& backend, model::ParameterStore& parameters,
                                 comm::Communicator* tensor, const Shards& shards, int data_rank)
    : backend_(backend),
      parameters_(parameters),
      tensor_(tensor),
      shards_(shards),
      data_rank_(shards.count() == 1 ? 0 : data_rank) {
  const std::size_t bytes =
      planned_bytes(parameters.placement(), tensor ? tensor->size() : 1, parameters.precision());
  if (bytes > 0) slots_ = backend.allocate(bytes, "copied gradients");
}

std::size_t CopiedGradients::planned_bytes(const model::Placement& placement, int tensor_ranks,
                                           const Precision& precision) {
  int shards = 0;
  for (const model::LocalParameter& local : placement.parameters)
    for (const model::LocalBlocks& blocks : local.blocks) {
      if (blocks.copies == 1) continue;
      TRIREME_CHECK(tensor_ranks > 1, "'{}' is copied over a tensor group that is not known",
                    local.parameter->name);
      shards = std::max(shards, tensor_ranks / blocks.copies);
    }
  return shards * kMaxElements * size_of(precision.master);
}

void CopiedGradients::sum() {
  if (!slots_) return;
  for (const model::LocalParameter& local : parameters_.placement().parameters)
    for (const model::LocalBlocks& blocks : local.blocks) {
      if (blocks.copies == 1 || local.shared) continue;
      for (const Range& bucket : shards_.buckets()) {
        const Range owned = shards_.owned_of(bucket, data_rank_);
        const std::int64_t last = std::min(owned.end, blocks.range.end);
        std::int64_t at = std::max(owned.begin, blocks.range.begin);
        for (; at < last; at += kMaxElements) {
          const Range range{at, std::min(last, at + kMaxElements)};
          sum(parameters_.gradient_buffer().own(
                  range, shards_.state_offset(bucket) + range.begin - owned.begin),
              blocks.copies);
        }
      }
    }
}

void CopiedGradients::sum(const Tensor& gradient, int copies) {
  const int shards = tensor_->size() / copies;
  const Tensor slots{slots_.get(), gradient.dtype, {shards, gradient.size()}};
  void* own = slots.rows(tensor_->rank() / copies, 1).data;
  backend_.zero(slots);
  backend_.copy(own, gradient.data, gradient.bytes());
  tensor_->all_reduce(slots.data, slots.size(), slots.dtype, comm::Reduce::sum);
  backend_.copy(gradient.data, own, gradient.bytes());
}

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
  if (shards.count() == 1) return;
  registered_gradients_ = registration(groups.data, gradients);
  if (!registered_gradients_) return;
  staging_ = backend.allocate(kReductionStaging, "staging buffer of reduce-scatters");
  registered_staging_ = groups.data.register_buffer(staging_.get(), kReductionStaging);
  if (registered_staging_)
    groups.data.set_staging_buffer(staging_.get(), kReductionStaging, /*min_bytes=*/0);
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

// Before the buckets: the two copies have different offsets in their stages' buffers, so they
// cannot be summed after those were scattered.
void GradientReducer::sum_tied_embedding() {
  if (!groups_.embedding) return;
  for (const model::LocalParameter& local : parameters_.placement().parameters) {
    if (!local.parameter->tied) continue;
    const Tensor gradient = slice(parameters_.gradient_buffer(), local);
    groups_.embedding->all_reduce(gradient.data, gradient.size(), gradient.dtype,
                                  comm::Reduce::sum);
  }
}

// The compute stream sums a bucket over the tensor ranks before another stream starts to sum it
// over the data ranks.
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

// ---- gathering of weights

void LayerWeightGather::gather(const Range& matrices) {
  start(matrices);
  layers_.content_of(matrices).wait();
}

void LayerWeightGather::prefetch(const Range& matrices, const Range& in_use) {
  if (!layers_.overlap || matrices.size() == 0) return;
  if (in_use.size() > 0 && &layers_.content_of(matrices) == &layers_.content_of(in_use)) return;
  start(matrices);
}

void LayerWeightGather::invalidate() {
  for (LayerBuffers::Content& content : layers_.contents) {
    content.wait();
    content.matrices = {};
  }
}

void LayerWeightGather::start(const Range& matrices) {
  LayerBuffers::Content& content = layers_.content_of(matrices);
  if (content.matrices == matrices) return;
  content.wait();
  content.matrices = matrices;
  for (const Range& bucket : layers_.shards.buckets_in(matrices)) {
    const Tensor kept = layers_.kept(bucket);
    layers_.backend.copy(layers_.passing(bucket).data, kept.data, kept.bytes());
    content.requests.push_back(
        layers_.data.start_all_gather(layers_.memory.at(bucket).data, kept.size(), kept.dtype));
  }
}

WeightGatherer::WeightGatherer(device::Backend& backend, model::ParameterStore& parameters,
                               comm::Communicator& data, comm::Communicator* embedding,
                               const Shards& shards, bool overlap)
    : parameters_(parameters),
      data_(data),
      embedding_(embedding),
      shards_(shards),
      overlap_(overlap),
      requests_(shards.buckets().size()) {
  const auto& weights = parameters.weight_buffer();
  if (shards.count() > 1) registered_ = registration(data, weights);
  if (weights.is_sharded())
    layers_.emplace(backend, parameters.placement(), weights, data, shards, overlap);
}

void WeightGatherer::updated(std::size_t index) {
  if (shards_.count() == 1) return;
  const Range& bucket = shards_.buckets()[index];
  if (layers_ && bucket.begin >= parameters_.placement().common_size) return layers_->invalidate();
  const Tensor weights = parameters_.weight_buffer().at(bucket);
  requests_[index] =
      data_.start_all_gather(weights.data, bucket.size() / shards_.count(), weights.dtype);
}

void WeightGatherer::finish_update() {
  if (!overlap_) wait_for({0, parameters_.placement().size});
  if (!embedding_) return;
  for (const model::LocalParameter& local : parameters_.placement().parameters) {
    if (!local.parameter->tied) continue;
    const Tensor weight = slice(parameters_.weight_buffer(), local);
    if (!local.shared) wait_for({local.offset, local.offset + weight.size()});
    embedding_->broadcast(weight.data, weight.bytes(), /*root=*/0);
  }
}

void WeightGatherer::before_use(const Range& range, const Range& next) {
  const bool of_layer = range.begin >= parameters_.placement().common_size;
  if (layers_ && of_layer) layers_->gather(range);
  if (layers_) layers_->prefetch(next, of_layer ? range : Range{});
  wait_for(range);
}

void WeightGatherer::wait_for(const Range& range) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Range& bucket = shards_.buckets()[i];
    if (!requests_[i] || bucket.end <= range.begin || bucket.begin >= range.end) continue;
    requests_[i]->wait();
    requests_[i].reset();
  }
}

}  // namespace trireme::optim
