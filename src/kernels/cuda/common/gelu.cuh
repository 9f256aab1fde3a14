// The tanh form of the GELU, in the shape that the host backend computes it in: with
// u = sqrt(2/pi) (x + 0.044715 x^3), gelu(x) = x/2 (1 + tanh(u)) = x s, where s = 1 / (1 + e) and
// e = exp(-2u): one exponential, and no cancellation for negative x.
#pragma once

#include "kernels/cuda/common/math.cuh"

namespace trireme::kernels::cuda {

/// s, for results that are rounded to T. Far left e is infinite, and s zero.
template <typename T>
struct Gelu {
  static constexpr float kSlope = 1.5957691216057307f;  // 2 sqrt(2/pi)
  static constexpr float kCubic = 0.044715f;

  float square, s;

  __device__ explicit Gelu(float x) : square(x * x) {
    constexpr float kScale = -kSlope * kLog2E;
    s = reciprocal<T>(1.0f + power_of_two<T>(x * (kScale + kScale * kCubic * square)));
  }

  /// s + x s (1 - s) d(2u)/dx.
  __device__ float derivative(float x) const {
    return s + fmaf(-s, s, s) * (x * (kSlope + 3.0f * kSlope * kCubic * square));
  }
};

}  // namespace trireme::kernels::cuda
