// What the GPU tests share: tensors on the GPU between canaries, values rounded as storage rounds
// them, and errors relative to a reference in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "device/backend.hpp"

namespace trireme::kernels {

/// The backend that all GPU tests of a program share: GPU 0.
inline device::Backend& gpu() {
  static const std::unique_ptr<device::Backend> backend = device::make_cuda_backend(0);
  return *backend;
}

/// `values` as storage of `dtype` holds them.
inline std::vector<double> rounded(const std::vector<double>& values, DType dtype) {
  if (dtype == DType::f64) return values;
  std::vector<float> floats(values.begin(), values.end());
  std::vector<std::byte> elements(values.size() * size_of(dtype));
  convert_from_float(floats.data(), floats.size(), dtype, elements.data());
  convert_to_float(elements.data(), floats.size(), dtype, floats.data());
  return {floats.begin(), floats.end()};
}

/// Normal random numbers of standard deviation `deviation`, fixed by `seed`, as `dtype` holds them.
inline std::vector<double> random_values(std::int64_t count, std::uint64_t seed, DType dtype,
                                         double deviation = 1.0) {
  std::vector<double> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = deviation * philox_normal(seed, 0, i);
  return rounded(values, dtype);
}

/// A tensor in the GPU's memory with canaries before and behind it.
class OnGpu {
 public:
  /// Poisoned: NaN everywhere, which an operation must overwrite.
  OnGpu(Shape shape, DType dtype)
      : OnGpu(shape, dtype,
              std::vector<double>(shape.size(), std::numeric_limits<double>::quiet_NaN())) {}
  /// Holds `values`, rounded.
  OnGpu(Shape shape, DType dtype, const std::vector<double>& values)
      : shape_(shape), dtype_(dtype) {
    const std::size_t bytes = shape.size() * size_of(dtype);
    std::vector<std::byte> image(bytes + 2 * kCanary, kPattern);
    if (dtype == DType::f64) {
      std::memcpy(image.data() + kCanary, values.data(), bytes);
    } else {
      const std::vector<float> floats(values.begin(), values.end());
      convert_from_float(floats.data(), floats.size(), dtype, image.data() + kCanary);
    }
    memory_ = gpu().allocate(image.size(), "a test");
    gpu().upload(memory_.get(), image.data(), image.size());
  }

  Tensor tensor() const {
    return {static_cast<std::byte*>(memory_.get()) + kCanary, dtype_, shape_};
  }

  /// The elements now; fails the test when something wrote outside them.
  std::vector<double> read() const {
    const std::size_t bytes = shape_.size() * size_of(dtype_);
    std::vector<std::byte> image(bytes + 2 * kCanary);
    gpu().download(image.data(), memory_.get(), image.size());
    for (std::size_t i = 0; i < kCanary; ++i) {
      EXPECT_EQ(image[i], kPattern) << "written " << kCanary - i << " bytes before the tensor";
      EXPECT_EQ(image[kCanary + bytes + i], kPattern) << "written " << i << " bytes behind it";
    }
    std::vector<double> values(shape_.size());
    if (dtype_ == DType::f64) {
      std::memcpy(values.data(), image.data() + kCanary, bytes);
      return values;
    }
    std::vector<float> floats(values.size());
    convert_to_float(image.data() + kCanary, floats.size(), dtype_, floats.data());
    return {floats.begin(), floats.end()};
  }

 private:
  static constexpr std::size_t kCanary = 256;
  static constexpr std::byte kPattern{0xA5};
  Shape shape_;
  DType dtype_;
  device::Buffer memory_;
};

/// Integers in the GPU's memory.
class IntsOnGpu {
 public:
  explicit IntsOnGpu(const std::vector<std::int32_t>& values)
      : memory_(gpu().allocate(values.size() * sizeof(std::int32_t), "a test")) {
    gpu().upload(memory_.get(), values.data(), values.size() * sizeof(std::int32_t));
  }
  const std::int32_t* data() const { return static_cast<const std::int32_t*>(memory_.get()); }

 private:
  device::Buffer memory_;
};

/// ||actual - expected|| / ||expected||, infinity where an element is not finite.
inline double relative_error(const std::vector<double>& actual,
                             const std::vector<double>& expected) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(actual[i])) return std::numeric_limits<double>::infinity();
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// Expects `actual` to be as near to `exact` (in double) as twice what a plain version in the same
/// precision, `plain`, is; `floor` is the relative error that is always allowed.
inline void expect_as_near(const std::string& name, const std::vector<double>& actual,
                           const std::vector<double>& plain, const std::vector<double>& exact,
                           double floor = 2e-6) {
  ASSERT_EQ(actual.size(), exact.size()) << name;
  const double error = relative_error(actual, exact);
  const double allowed = std::max(2.0 * relative_error(plain, exact), floor);
  EXPECT_LE(error, allowed) << name << ": the error is more than twice that of a plain version";
  if (error <= allowed) return;
  std::size_t worst = 0;
  double largest = -1.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double distance = std::abs(actual[i] - exact[i]);
    if (!(distance <= largest)) {
      largest = distance;
      worst = i;
      if (std::isnan(distance)) break;
    }
  }
  ADD_FAILURE() << name << "[" << worst << "] of " << exact.size() << " is " << actual[worst]
                << ", expected " << exact[worst];
}

}  // namespace trireme::kernels
