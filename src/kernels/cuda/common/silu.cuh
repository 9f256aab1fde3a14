// The activation function of SwiGLU, as those of math.cuh.
#pragma once

#include "kernels/cuda/common/math.cuh"

namespace trireme::kernels::cuda {

/// silu(x) = x s for results that are rounded to T. Far left s is zero.
template <typename T>
struct Silu {
  float s;

  __device__ explicit Silu(float x) : s(reciprocal<T>(1.0f + power_of_two<T>(x * -kLog2E))) {}

  __device__ float value(float x) const { return x * s; }
  __device__ float derivative(float x) const { return s * fmaf(x, 1.0f - s, 1.0f); }
};

}  // namespace trireme::kernels::cuda
