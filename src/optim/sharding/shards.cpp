#include "optim/sharding/shards.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

/// How far apart to cut `size` elements into about equal pieces of at most `most`; where that is
/// not less than `aligned`, a multiple of it, so that shards lie as kernels like them.
std::int64_t even_step(std::int64_t size, std::int64_t most, std::int64_t aligned) {
  const std::int64_t pieces = std::max<std::int64_t>((size + most - 1) / most, 1);
  const std::int64_t even = (size + pieces - 1) / pieces;
  return std::min(most, (even + aligned - 1) / aligned * aligned);
}

}  // namespace

Shards::Shards(const std::vector<std::int64_t>& ends, std::int64_t bucket, int count)
    : count_(count) {
  const std::int64_t most = std::max<std::int64_t>(bucket / std::max(count, 1), 1) * count;
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    TRIREME_CHECK(count >= 1 && end % count == 0, "{} elements cannot be cut into {} shards", end,
                  count);
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

}  // namespace trireme::optim
