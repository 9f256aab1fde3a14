#include "optim/sharding/weight_gatherer.hpp"

namespace trireme::optim {

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
