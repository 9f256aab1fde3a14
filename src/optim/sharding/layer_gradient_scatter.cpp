#include "optim/sharding/layer_gradient_scatter.hpp"

#include <algorithm>

namespace trireme::optim {

LayerGradientScatter::LayerGradientScatter(device::Backend& backend,
                                           const model::Placement& placement,
                                           const model::ParameterBuffer& gradients,
                                           comm::Communicator& data, const Shards& shards,
                                           bool overlap)
    : backend_(backend),
      placement_(placement),
      gradients_(gradients),
      data_(data),
      shards_(shards),
      overlap_(overlap),
      contents_(gradients.buffers()) {}

LayerGradientScatter::Content& LayerGradientScatter::content_of(const Range& matrices) {
  return contents_[placement_.layer_at(matrices.begin) % contents_.size()];
}

// A part of the buffer that another rank owns holds what is added from now on, this rank's own part
// all that was kept: the sum over ranks has everything once.
void LayerGradientScatter::open(const Range& matrices) {
  Content& content = content_of(matrices);
  keep(content);
  content.matrices = matrices;
  backend_.zero(gradients_.at(matrices));
  copy_own(matrices, Way::to_buffer);
}

void LayerGradientScatter::close(const Range& matrices) {
  Content& content = content_of(matrices);
  for (const Range& bucket : shards_.buckets_in(matrices)) {
    const Tensor gradient = gradients_.at(bucket);
    content.sums.push_back(
        data_.start_reduce_scatter(gradient.data, bucket.size() / shards_.count(), gradient.dtype));
  }
  if (!overlap_) keep(content);
}

void LayerGradientScatter::finish() {
  for (Content& content : contents_) keep(content);
}

void LayerGradientScatter::keep(Content& content) {
  if (content.sums.empty()) return;
  for (const auto& sum : content.sums) sum->wait();
  content.sums.clear();
  copy_own(content.matrices, Way::from_buffer);
}

void LayerGradientScatter::copy_own(const Range& matrices, Way way) const {
  for (const Range& bucket : shards_.buckets_in(matrices)) {
    const Range owned = shards_.owned_of(bucket, data_.rank());
    const Tensor passing = gradients_.at(owned);
    const Tensor kept = gradients_.own(owned, shards_.state_offset(bucket));
    const auto [to, from] =
        way == Way::to_buffer ? std::pair(passing, kept) : std::pair(kept, passing);
    backend_.copy(to.data, from.data, to.bytes());
  }
}

}  // namespace trireme::optim
