// What the kernel tests share: owned tensors, comparisons that name the first difference, finite
// differences, and the rule that threads change no bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::kernels {

/// Both storage types, for TYPED_TEST_SUITE.
using StorageTypes = ::testing::Types<float, double>;

/// Of Dropout.
inline constexpr std::uint64_t kFirstSample = 1000;

/// A tensor that owns its elements.
template <typename T>
class Owned {
 public:
  /// Filled with NaN: what an operation must overwrite.
  explicit Owned(Shape shape)
      : shape_(shape), values_(shape.size(), std::numeric_limits<T>::quiet_NaN()) {}
  /// Filled with `value`.
  Owned(Shape shape, double value) : shape_(shape), values_(shape.size(), static_cast<T>(value)) {}

  /// Normal random numbers of standard deviation `deviation`, fixed by `seed`.
  static Owned random(Shape shape, std::uint64_t seed, double deviation = 1.0) {
    Owned result(shape);
    for (std::size_t i = 0; i < result.values_.size(); ++i)
      result.values_[i] = static_cast<T>(deviation * philox_normal(seed, 0, i));
    return result;
  }

  Tensor tensor() { return {values_.data(), dtype_of<T>, shape_}; }
  const Shape& shape() const { return shape_; }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  T& operator[](std::int64_t i) { return values_[i]; }
  double operator[](std::int64_t i) const { return values_[i]; }

 private:
  Shape shape_;
  std::vector<T> values_;
};

/// "[2, 0, 5]": where element `index` of a tensor of `shape` lies.
inline std::string coordinate(const Shape& shape, std::int64_t index) {
  std::string text;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    text += (axis ? ", " : "[") + std::to_string(index / shape.stride(axis) % shape[axis]);
  }
  return text + "]";
}

/// Rounding error that `float` results may have, relative to the largest expected value; double
/// results get the same multiple of their own rounding.
template <typename T>
double tolerance(double float_tolerance) {
  return sizeof(T) == 4 ? float_tolerance : float_tolerance * 1e-8;
}

/// Expects |actual - expected| <= tolerance * max |expected| everywhere.
template <typename T>
void expect_close(const char* name, const Owned<T>& actual, const std::vector<double>& expected,
                  double tolerance) {
  ASSERT_EQ(actual.size(), static_cast<std::int64_t>(expected.size())) << name;
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::int64_t i = 0; i < actual.size(); ++i) {
    if (!(std::abs(actual[i] - expected[i]) <= tolerance * largest)) {
      ADD_FAILURE() << name << coordinate(actual.shape(), i) << " is " << actual[i] << ", expected "
                    << expected[i] << " (tolerance " << tolerance << " of " << largest << ")";
      return;
    }
  }
}

/// Expects two results to be equal bit by bit.
template <typename T>
void expect_same_bits(const char* name, const Owned<T>& first, const Owned<T>& second) {
  ASSERT_EQ(first.size(), second.size()) << name;
  for (std::int64_t i = 0; i < first.size(); ++i) {
    const T a = static_cast<T>(first[i]), b = static_cast<T>(second[i]);
    if (std::memcmp(&a, &b, sizeof(T)) != 0) {
      ADD_FAILURE() << name << coordinate(first.shape(), i) << " is " << first[i] << " once and "
                    << second[i] << " another time";
      return;
    }
  }
}

/// Runs `compute` twice on one thread, then on two and on four, and expects the same bits.
template <typename T>
void expect_threads_change_nothing(const char* name, const std::function<Owned<T>()>& compute) {
  host::use_threads(1);
  const Owned<T> serial = compute();
  expect_same_bits(name, serial, compute());
  for (const int threads : {2, 4}) {
    host::use_threads(threads);
    expect_same_bits(name, serial, compute());
  }
  host::use_threads(2);
}

/// Expects `gradient` to be the derivative of `loss` with respect to the elements of `x`, by
/// central differences in double, to `tolerance` of the gradient's largest element.
inline void expect_gradient(const char* name, Owned<double>& x, const Owned<double>& gradient,
                            const std::function<double()>& loss, double tolerance = 1e-6) {
  constexpr double kStep = 1e-4;
  host::use_threads(1);  // thousands of tiny calls: waking threads would take most of the time
  std::vector<double> expected(x.size());
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double original = x[i];
    // Fourth order, so that the step can stay large enough against rounding.
    const auto at = [&](double offset) {
      x[i] = original + offset;
      const double value = loss();
      x[i] = original;
      return value;
    };
    expected[i] =
        (8.0 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
  }
  host::use_threads(2);
  expect_close(name, gradient, expected, tolerance);
}

/// GELU by its tanh formula.
inline double gelu_in_double(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/// sum of a * b: a scalar loss whose gradient with respect to a is b.
inline double dot(const Owned<double>& a, const Owned<double>& b) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace trireme::kernels
