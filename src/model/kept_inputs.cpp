#include "model/kept_inputs.hpp"

#include <algorithm>

namespace trireme::model {
namespace {

/// Copies between an input at hand and its kept share, beside what is asked next where the share
/// is in the host's memory.
void start_copy(const LayerContext& context, const Tensor& to, const Tensor& from) {
  if (context.recompute.offload)
    context.backend.start_copy(to.data, from.data, from.bytes());
  else
    context.backend.copy(to.data, from.data, from.bytes());
}

void finish_copies(const LayerContext& context) {
  if (context.recompute.offload) context.backend.finish_copies();
}

}  // namespace

KeptInputs KeptInputs::take(Arena& arena, Arena& host, const LayerSizes& sizes, int segments,
                            int slots) {
  const Recompute& recompute = sizes.recompute;
  TRIREME_CHECK(!recompute.partition || !sizes.cut_sequence,
                "tensor ranks have parts of the residual stream: there is nothing to share");
  const std::int64_t shares = recompute.partition ? sizes.tensor_ranks : 1;
  const Shape stream = sizes.stream_shape();
  KeptInputs inputs;
  inputs.kept_.resize(slots);
  for (auto& slot : inputs.kept_)
    for (int segment = 0; segment < segments; ++segment)
      slot.push_back((recompute.offload ? host : arena)
                         .take(sizes.dtype,
                               recompute.moves_inputs() ? Shape{stream.size() / shares} : stream));
  if (segments == 0 || !recompute.moves_inputs()) return inputs;
  const int even = std::min(slots, 2);
  for (int i = 0; i < 1 + even; ++i) inputs.work_.push_back(arena.take(sizes.dtype, stream));
  return inputs;
}

Tensor KeptInputs::own_share(const LayerContext& context, int slot, int segment) const {
  const Tensor stream = at_hand(slot, segment);
  if (!context.recompute.partition) return stream;
  const std::int64_t share = stream.size() / context.tensor_ranks;
  return stream.view({stream.size()}).rows(context.tensor.rank() * share, share);
}

void KeptInputs::start_keeping(const LayerContext& context, int slot, int segment) const {
  if (work_.empty()) return;
  start_copy(context, kept_[slot][segment], own_share(context, slot, segment));
}

void KeptInputs::finish_keeping(const LayerContext& context) const {
  if (!work_.empty()) finish_copies(context);
}

void KeptInputs::start_fetching(const LayerContext& context, int slot, int segment) const {
  if (work_.empty() || segment < 0) return;
  start_copy(context, own_share(context, slot, segment), kept_[slot][segment]);
}

void KeptInputs::finish_fetching(const LayerContext& context, int slot, int segment) const {
  if (work_.empty()) return;
  finish_copies(context);
  if (!context.recompute.partition) return;
  const Tensor stream = at_hand(slot, segment);
  context.tensor.all_gather(stream.data, stream.size() / context.tensor_ranks, stream.dtype);
}

}  // namespace trireme::model
