#include "model/flat_memory.hpp"

#include <algorithm>

namespace trireme::model {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

FlatMemory::Parts FlatMemory::Parts::take(std::byte* base, const Placement& placement, DType common,
                                          DType matrices, const Holding& holding) {
  Parts parts;
  const auto take = [&](DType dtype, std::int64_t size) {
    const std::size_t begin = (parts.bytes + kAlignment - 1) / kAlignment * kAlignment;
    const Tensor tensor{base ? base + begin : nullptr, dtype, {size}};
    parts.bytes = begin + tensor.bytes();
    return tensor;
  };
  const std::int64_t layers_size = placement.layers_size();
  const bool cut = holding.buffers > 0 && holding.data_ranks > 1 && layers_size > 0;
  parts.in_order = !cut && common == matrices;
  if (parts.in_order) {
    parts.all = take(common, placement.size);
    return parts;
  }
  parts.common = take(common, placement.size - layers_size);
  if (!cut) {
    parts.matrices = take(matrices, layers_size);
    return parts;
  }
  parts.own = take(matrices, layers_size / holding.data_ranks);
  std::int64_t largest = 0;
  for (const Range& layer : placement.layers) largest = std::max(largest, layer.size());
  for (int i = 0; i < std::min<int>(holding.buffers, std::ssize(placement.layers)); ++i)
    parts.buffers.push_back(take(matrices, largest));
  return parts;
}

FlatMemory::FlatMemory(device::Backend& backend, const Placement& placement, DType common,
                       DType matrices, const Holding& holding, const char* purpose)
    : placement_(&placement),
      narrow_(common != matrices),
      common_state_(placement.common_size / holding.data_ranks),
      memory_(backend.allocate(planned_bytes(placement, common, matrices, holding), purpose)) {
  parts_ =
      Parts::take(static_cast<std::byte*>(memory_.get()), placement, common, matrices, holding);
}

std::size_t FlatMemory::planned_bytes(const Placement& placement, DType common, DType matrices,
                                      const Holding& holding) {
  return Parts::take(nullptr, placement, common, matrices, holding).bytes;
}

Tensor FlatMemory::at(const Range& range) const {
  if (parts_.in_order) return parts_.all.rows(range.begin, range.size());
  const std::int64_t first = placement_->common_size;  // element of a layer's matrices
  if (range.end <= first) return parts_.common.rows(range.begin, range.size());
  if (range.begin >= placement_->owned_size)
    return parts_.common.rows(range.begin - placement_->layers_size(), range.size());
  if (!is_cut()) return parts_.matrices.rows(range.begin - first, range.size());
  const std::size_t layer = placement_->layer_at(range.begin);
  return parts_.buffers[layer % parts_.buffers.size()].rows(
      range.begin - placement_->layers[layer].begin, range.size());
}

Tensor FlatMemory::own(const Range& range, std::int64_t state) const {
  if (!is_cut() || range.end <= placement_->common_size) return at(range);
  return parts_.own.rows(state - common_state_, range.size());
}

Tensor FlatMemory::all() const {
  TRIREME_CHECK(parts_.in_order, "the elements do not lie one behind the other");
  return parts_.all;
}

void FlatMemory::zero(device::Backend& backend) const {
  for (const Tensor& part : {parts_.all, parts_.common, parts_.matrices, parts_.own})
    if (part) backend.zero(part);
}

}  // namespace trireme::model
