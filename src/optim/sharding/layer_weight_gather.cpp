#include "optim/sharding/layer_weight_gather.hpp"

namespace trireme::optim {

LayerWeightGather::LayerWeightGather(device::Backend& backend, const model::Placement& placement,
                                     const model::ParameterBuffer& weights,
                                     comm::Communicator& data, const Shards& shards, bool overlap)
    : backend_(backend),
      placement_(placement),
      weights_(weights),
      data_(data),
      shards_(shards),
      overlap_(overlap),
      contents_(weights.buffers()) {}

void LayerWeightGather::Content::wait() {
  for (const auto& part : arriving) part->wait();
  arriving.clear();
}

LayerWeightGather::Content& LayerWeightGather::content_of(const Range& matrices) {
  return contents_[placement_.layer_at(matrices.begin) % contents_.size()];
}

void LayerWeightGather::bring(const Range& matrices) {
  start(matrices);
  content_of(matrices).wait();
}

void LayerWeightGather::prefetch(const Range& matrices, const Range& reading) {
  if (!overlap_ || matrices.size() == 0) return;
  if (reading.size() > 0 && &content_of(matrices) == &content_of(reading)) return;
  start(matrices);
}

void LayerWeightGather::forget() {
  for (Content& content : contents_) {
    content.wait();
    content.matrices = {};
  }
}

void LayerWeightGather::start(const Range& matrices) {
  Content& content = content_of(matrices);
  if (content.matrices == matrices) return;
  content.wait();
  content.matrices = matrices;
  for (const Range& bucket : shards_.buckets_in(matrices)) {
    const Range owned = shards_.owned_of(bucket, data_.rank());
    const Tensor kept = weights_.own(owned, shards_.state_offset(bucket));
    backend_.copy(weights_.at(owned).data, kept.data, kept.bytes());
    content.arriving.push_back(
        data_.start_all_gather(weights_.at(bucket).data, kept.size(), kept.dtype));
  }
}

}  // namespace trireme::optim
