#include "optim/sharding/shards.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

/// The size of about equal pieces of `size` elements, at most `most`; a multiple of `aligned`
/// unless `most` is smaller, so that shards are aligned for vectorized kernels.
std::int64_t even_step(std::int64_t size, std::int64_t most, std::int64_t aligned) {
  const std::int64_t pieces = std::max<std::int64_t>((size + most - 1) / most, 1);
  const std::int64_t even = (size + pieces - 1) / pieces;
  return std::min(most, (even + aligned - 1) / aligned * aligned);
}

/// Elements of the largest range of layers' matrices that a rank owns.
std::int64_t largest_range(const model::Placement& placement, const Shards& shards) {
  std::int64_t largest = 0;
  for (const Range& bucket : shards.buckets_in({placement.common_size, placement.owned_size}))
    largest = std::max(largest, bucket.size() / shards.count());
  return largest;
}

/// Appends a range to ascending bounds, joined with the one before when they touch.
void add_range(std::vector<std::int64_t>& bounds, const Range& range) {
  if (!bounds.empty() && bounds.back() == range.begin)
    bounds.back() = range.end;
  else
    bounds.insert(bounds.end(), {range.begin, range.end});
}

}  // namespace

Shards::Shards(const std::vector<std::int64_t>& ends, std::int64_t bucket, int count)
    : count_(count) {
  const std::int64_t most = std::max<std::int64_t>(bucket / std::max(count, 1), 1) * count;
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    TRIREME_CHECK(count >= 1 && end % count == 0, "{} elements cannot be divided into {} shards",
                  end, count);
    const std::int64_t step = even_step(end - begin, most, count * model::kParameterAlignment);
    for (; begin < end; begin = buckets_.back().end)
      buckets_.push_back({begin, std::min(end, begin + step)});
  }
}

std::span<const Range> Shards::buckets_in(const Range& range) const {
  const auto first = std::find_if(buckets_.begin(), buckets_.end(),
                                  [&](const Range& b) { return b.begin >= range.begin; });
  const auto last =
      std::find_if(first, buckets_.end(), [&](const Range& b) { return b.end > range.end; });
  return {first, last};
}

std::vector<Range> Shards::owned(int index) const {
  std::vector<Range> ranges;
  for (const Range& bucket : buckets_) ranges.push_back(owned_of(bucket, index));
  return ranges;
}

Range Shards::owned_of(const Range& bucket, int index) const {
  const std::int64_t part = bucket.size() / count_;
  return {bucket.begin + index * part, bucket.begin + (index + 1) * part};
}

std::size_t OwnedShard::planned_bytes(const model::Placement& placement, const Shards& shards,
                                      const Precision& precision) {
  const std::int64_t copied =
      precision.weights == precision.master ? 0 : placement.owned_size / shards.count();
  const std::int64_t converted =
      precision.gradients == precision.master ? 0 : largest_range(placement, shards);
  return (copied + converted) * size_of(precision.master);
}

OwnedShard::OwnedShard(device::Backend& backend, model::ParameterStore& parameters,
                       const Shards& shards, int data_rank)
    : backend_(backend),
      parameters_(parameters),
      elements_(parameters.placement().owned_size / shards.count()),
      common_elements_(parameters.placement().common_size / shards.count()),
      is_sharded_(shards.count() > 1) {
  const DType master = precision().master;
  const std::size_t bytes = planned_bytes(parameters.placement(), shards, precision());
  if (bytes > 0) memory_ = backend.allocate(bytes, "master weights");
  auto* base = static_cast<std::byte*>(memory_.get());
  if (precision().weights != master) {
    master_ = {base, master, {elements_}};
    base += master_.bytes();
  }
  if (precision().gradients != master)
    converted_ = {base, master, {largest_range(parameters.placement(), shards)}};
  const std::vector<Range> owned = shards.owned(shards.count() == 1 ? 0 : data_rank);
  find_parts(owned, /*first_copy=*/shards.count() > 1 || data_rank == 0);
  build_ranges(owned);
}

void OwnedShard::find_parts(const std::vector<Range>& owned, bool first_copy) {
  std::int64_t state_offset = 0;
  for (const Range& range : owned) {
    for (const model::LocalParameter& local : parameters_.placement().parameters)
      for (const model::LocalBlocks& blocks : local.blocks) {
        const std::int64_t begin = std::max(range.begin, blocks.range.begin);
        const std::int64_t end = std::min(range.end, blocks.range.end);
        if (local.shared || begin >= end) continue;
        parts_.push_back(
            {.parameter = local.parameter,
             .slabs = grid::slice_hyperslabs(local.slabs, begin - local.offset, end - local.offset),
             .weight_offset = begin,
             .state_offset = state_offset + begin - range.begin,
             .primary = blocks.primary && first_copy});
      }
    state_offset += range.size();
  }
}

void OwnedShard::build_ranges(const std::vector<Range>& owned) {
  std::vector<std::int64_t> bounds;  // of all ranges, uploaded as one
  struct Place {
    std::size_t decayed, counted, end;
  };
  std::vector<Place> places;
  std::int64_t state_offset = 0;
  for (const Range& range : owned) {
    std::vector<std::int64_t> decayed, counted;
    for (const OwnedPart& part : parts_) {
      if (!range.contains(part.weight_offset)) continue;
      const std::int64_t begin = part.weight_offset - range.begin;
      const Range within{begin, begin + part.elements()};
      if (part.parameter->weight_decay) add_range(decayed, within);
      if (part.primary) add_range(counted, within);
    }
    // No bounds would mean all elements: an empty range means none.
    for (auto* list : {&decayed, &counted})
      if (list->empty()) *list = {0, 0};
    places.push_back({bounds.size(), bounds.size() + decayed.size(),
                      bounds.size() + decayed.size() + counted.size()});
    bounds.insert(bounds.end(), decayed.begin(), decayed.end());
    bounds.insert(bounds.end(), counted.begin(), counted.end());
    ranges_.push_back({.range = range, .state_offset = state_offset});
    state_offset += range.size();
  }
  bounds_memory_ = backend_.allocate(bounds.size() * sizeof bounds[0], "optimizer bounds");
  backend_.upload(bounds_memory_.get(), bounds.data(), bounds.size() * sizeof bounds[0]);
  const auto* uploaded = static_cast<const std::int64_t*>(bounds_memory_.get());
  const auto ranges = [&](std::size_t begin, std::size_t end) {
    return kernels::IndexRanges{uploaded + begin, static_cast<std::int64_t>(end - begin)};
  };
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    ranges_[i].decayed = ranges(places[i].decayed, places[i].counted);
    ranges_[i].counted = ranges(places[i].counted, places[i].end);
  }
}

Tensor OwnedShard::whole_master(const std::string& name) const {
  const auto& local = parameters_.placement().parameters;
  const auto found =
      std::ranges::find_if(local, [&](const auto& p) { return p.parameter->name == name; });
  TRIREME_CHECK(!is_sharded_ && found != local.end() && !found->shared,
                "this rank has not all master weights of '{}'", name);
  return has_master_copy() ? model::slice(master_, *found)
                           : model::slice(parameters_.weight_buffer(), *found);
}

Tensor OwnedShard::gradient(const OwnedRange& owned) const {
  const Tensor summed = summed_gradient(owned);
  if (summed.dtype == precision().master) return summed;
  const Tensor converted = converted_.rows(0, summed.size());
  backend_.cast({.x = summed, .out = converted});
  return converted;
}

}  // namespace trireme::optim
