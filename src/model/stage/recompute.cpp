#include "model/stage/recompute.hpp"

#include <algorithm>
#include "device/timers.hpp"

#include "core/error.hpp"

namespace trireme::model {

std::vector<Segment> make_segments(int layers, const Recompute& recompute) {
  using What = Recompute::What;
  TRIREME_CHECK(recompute.layers >= 1, "groups of {} layers", recompute.layers);
  const int group = recompute.what == What::uniform ? recompute.layers : 1;
  const int recomputed = recompute.what == What::uniform ? layers
                         : recompute.what == What::block ? std::min(layers, recompute.layers)
                                                         : 0;
  std::vector<Segment> segments;
  for (int first = 0; first < recomputed; first += group)
    segments.push_back({first, std::min(group, recomputed - first), /*recomputed=*/true});
  if (recomputed < layers)
    segments.push_back({recomputed, layers - recomputed, /*recomputed=*/false});
  return segments;
}

void SegmentInputs::start_copy(const LayerContext& context, const Tensor& to,
                               const Tensor& from) const {
  const device::NamedRange range({"copy-activations"});
  if (recompute_.offload)
    context.backend.start_copy(to.data, from.data, from.bytes());
  else
    context.backend.copy(to.data, from.data, from.bytes());
}

void SegmentInputs::finish_copies(const LayerContext& context) const {
  if (!recompute_.offload) return;
  const device::NamedRange range({"wait-for-copies"});
  context.backend.finish_copies();
}

SegmentInputs SegmentInputs::take(Arena& arena, Arena& host, const LayerSizes& sizes,
                                  const Recompute& recompute, int segments, int slots) {
  TRIREME_CHECK(!recompute.partition || !sizes.sequence_parallel,
                "tensor ranks have parts of the residual stream: there is nothing to share");
  const std::int64_t shares = recompute.partition ? sizes.tensor_ranks : 1;
  const Shape stream = sizes.shard_shape();
  SegmentInputs inputs;
  inputs.recompute_ = recompute;
  inputs.kept_.resize(slots);
  for (auto& slot : inputs.kept_)
    for (int segment = 0; segment < segments; ++segment)
      slot.push_back((recompute.offload ? host : arena)
                         .take(sizes.precision.activations,
                               recompute.moves_inputs() ? Shape{stream.size() / shares} : stream));
  if (segments == 0 || !recompute.moves_inputs()) return inputs;
  const int even = std::min(slots, 2);
  for (int i = 0; i < 1 + even; ++i)
    inputs.work_.push_back(arena.take(sizes.precision.activations, stream));
  return inputs;
}

Tensor SegmentInputs::own_share(const LayerContext& context, int slot, int segment) const {
  const Tensor stream = at_hand(slot, segment);
  if (!recompute_.partition) return stream;
  const std::int64_t share = stream.size() / context.tensor_ranks;
  return stream.view({stream.size()}).rows(context.tensor.rank() * share, share);
}

void SegmentInputs::start_keeping(const LayerContext& context, int slot, int segment) const {
  if (work_.empty()) return;
  start_copy(context, kept_[slot][segment], own_share(context, slot, segment));
}

void SegmentInputs::finish_keeping(const LayerContext& context) const {
  if (!work_.empty()) finish_copies(context);
}

void SegmentInputs::start_fetching(const LayerContext& context, int slot, int segment) const {
  if (work_.empty() || segment < 0) return;
  start_copy(context, own_share(context, slot, segment), kept_[slot][segment]);
}

void SegmentInputs::finish_fetching(const LayerContext& context, int slot, int segment) const {
  if (work_.empty()) return;
  finish_copies(context);
  if (!recompute_.partition) return;
  const Tensor stream = at_hand(slot, segment);
  context.tensor.all_gather(stream.data, stream.size() / context.tensor_ranks, stream.dtype);
}

}  // namespace trireme::model
