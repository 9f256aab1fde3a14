// How a flat buffer is cut into buckets that are reduced one by one, and each bucket into shards of
// the data ranks (ZeRO-1). Source: Rajbhandari et al., "ZeRO: memory optimizations toward training
// trillion parameter models" (2020), section 5.1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parameters/placement.hpp"

namespace trireme::optim {

using model::Range;

/// The buckets of a flat buffer: consecutive, each divisible by the number of shards. Shard r of a
/// bucket is its r-th equal part.
class Shards {
 public:
  /// Cuts the elements before the last of `ends`, which ascend and are multiples of `count`, into
  /// buckets of at most `bucket` elements, none of which goes past one of `ends`; those between two
  /// ends are about equal. `count` 1 means that every rank owns everything. Throws InternalError
  /// when an end does not divide.
  Shards(const std::vector<std::int64_t>& ends, std::int64_t bucket, int count);

  int count() const { return count_; }
  const std::vector<Range>& buckets() const { return buckets_; }
  /// The buckets in `range`, which begins and ends with buckets.
  std::span<const Range> buckets_in(const Range& range) const;

  /// The ranges that shard `index` owns, one per bucket, in order.
  std::vector<Range> owned(int index) const;
  /// That of `bucket`, and how many elements of the shard come before it.
  Range owned_of(const Range& bucket, int index) const;
  std::int64_t state_offset(const Range& bucket) const { return bucket.begin / count_; }

 private:
  int count_;
  std::vector<Range> buckets_;
};

}  // namespace trireme::optim
