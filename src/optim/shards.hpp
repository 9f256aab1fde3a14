// How a flat buffer is cut into buckets that are reduced one by one, and each bucket into shards of
// the data ranks (ZeRO-1). Source: Rajbhandari et al., "ZeRO: memory optimizations toward training
// trillion parameter models" (2020), section 5.1.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::optim {

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool contains(std::int64_t element) const { return begin <= element && element < end; }
  bool operator==(const Range&) const = default;
};

/// The buckets of a flat buffer: consecutive, each divisible by the number of shards. Shard r of a
/// bucket is its r-th equal part.
class Shards {
 public:
  /// Cuts `size` elements, a multiple of `count`, into buckets of about `bucket` elements; `count`
  /// 1 means that every rank owns everything. Throws InternalError when `size` does not divide.
  Shards(std::int64_t size, std::int64_t bucket, int count);

  int count() const { return count_; }
  const std::vector<Range>& buckets() const { return buckets_; }

  /// The ranges that shard `index` owns, one per bucket, in order.
  std::vector<Range> owned(int index) const;

 private:
  int count_;
  std::vector<Range> buckets_;
};

}  // namespace trireme::optim
