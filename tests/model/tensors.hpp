// Tensors of the host backend as vectors of doubles, for comparisons.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "device/tensor.hpp"

namespace trireme::test {

/// The elements of a tensor in host memory.
inline std::vector<double> to_doubles(const Tensor& tensor) {
  return dispatch(tensor.dtype, [&](auto element) {
    const auto* data = tensor.as<decltype(element)>();
    return std::vector<double>(data, data + tensor.size());
  });
}

/// Writes `values`, as many as the tensor has elements, rounded to its type.
inline void assign(const Tensor& tensor, std::span<const double> values) {
  TRIREME_CHECK(std::ssize(values) == tensor.size(), "{} values for shape {}", values.size(),
                to_string(tensor.shape));
  dispatch(tensor.dtype, [&](auto element) {
    std::copy(values.begin(), values.end(), tensor.as<decltype(element)>());
  });
}

/// L2 norm.
inline double norm(std::span<const double> x) {
  double squares = 0.0;
  for (double value : x) squares += value * value;
  return std::sqrt(squares);
}

/// L2 norm of x - y, which must be of one size.
inline double distance(std::span<const double> x, std::span<const double> y) {
  TRIREME_CHECK(x.size() == y.size(), "{} and {} elements", x.size(), y.size());
  double squares = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(squares);
}

}  // namespace trireme::test
