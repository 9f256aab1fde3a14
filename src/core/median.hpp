// The middle of measured values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.hpp"

namespace trireme {

/// The median of `values`: of an even number the lower of the two in the middle, so that it is
/// always one of them. Throws InternalError when there are none.
template <typename T>
T median(std::vector<T> values) {
  TRIREME_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace trireme
