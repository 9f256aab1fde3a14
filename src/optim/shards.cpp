#include "optim/shards.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::optim {

Shards::Shards(std::int64_t size, std::int64_t bucket, int count) : count_(count) {
  TRIREME_CHECK(count >= 1 && size % count == 0, "{} elements cannot be cut into {} shards", size,
                count);
  const std::int64_t step = std::max<std::int64_t>(bucket / count, 1) * count;
  for (std::int64_t begin = 0; begin < size; begin += step)
    buckets_.push_back({begin, std::min(size, begin + step)});
}

std::vector<Range> Shards::owned(int index) const {
  std::vector<Range> ranges;
  for (const Range& bucket : buckets_) {
    const std::int64_t part = bucket.size() / count_;
    ranges.push_back({bucket.begin + index * part, bucket.begin + (index + 1) * part});
  }
  return ranges;
}

}  // namespace trireme::optim
