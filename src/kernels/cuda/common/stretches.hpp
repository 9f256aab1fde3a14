// Search in the stretches of a flat buffer.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "kernels/optimizer.hpp"

namespace trireme::kernels::cuda {

/// The number of bounds[begin .. end - 1], ascending, at or below `index`, plus `begin`.
TRIREME_HOST_DEVICE inline std::int64_t bounds_up_to(const std::int64_t* bounds, std::int64_t begin,
                                                     std::int64_t end, std::int64_t index) {
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (bounds[middle] <= index)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

/// The stretches as one chunk of the buffer sees them. Most chunks lie in one stretch, so the
/// search over all bounds is done once a chunk and most elements need none.
class ChunkStretches {
 public:
  /// For elements begin .. end - 1 of the buffer; begin < end.
  TRIREME_HOST_DEVICE ChunkStretches(const Stretches& stretches, std::int64_t begin,
                                     std::int64_t end)
      : bounds_(stretches.bounds), whole_(stretches.count == 0) {
    if (whole_) return;
    first_ = bounds_up_to(bounds_, 0, stretches.count, begin);
    last_ = bounds_up_to(bounds_, first_, stretches.count, end - 1);
  }

  /// Whether one answer holds for the whole chunk.
  TRIREME_HOST_DEVICE bool uniform() const { return first_ == last_; }

  /// Whether element `index`, one of the chunk, lies inside a stretch.
  TRIREME_HOST_DEVICE bool contains(std::int64_t index) const {
    if (whole_) return true;
    if (uniform()) return first_ % 2 != 0;
    return bounds_up_to(bounds_, first_, last_, index) % 2 != 0;
  }

 private:
  const std::int64_t* bounds_;
  bool whole_;
  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
};

}  // namespace trireme::kernels::cuda
