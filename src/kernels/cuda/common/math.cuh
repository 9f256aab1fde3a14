// Arithmetic of single values, reductions over warps and blocks.
#pragma once

#include <type_traits>

namespace trireme::kernels::cuda {

/// 2^x for results that are rounded to T. For the 16-bit types the hardware's instruction (relative
/// error 2^-22), without the three others that keep subnormal results.
template <typename T>
__device__ __forceinline__ float power_of_two(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return exp2f(x);
  } else {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
}

inline constexpr float kLog2E = 1.4426950408889634f;

/// e^x for results that are rounded to T; for the 16-bit types with a relative error of about
/// (2 + |x|) 2^-23.
template <typename T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>)
    return expf(x);
  else
    return power_of_two<T>(x * kLog2E);
}

/// 1 / x for results that are rounded to T; x from 1 to 2^126. For the 16-bit types the hardware's
/// instruction (relative error 2^-23).
template <typename T>
__device__ __forceinline__ float reciprocal(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / x;
  } else {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
}

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

/// The sum of the warp's values, the same bits in every lane.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}

/// The sum of the values of a block of kThreads threads; holds in thread 0.
template <int kThreads>
__device__ __forceinline__ double block_sum(double value) {
  __shared__ double sums[kThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) value += sums[warp];
  }
  return value;
}

}  // namespace trireme::kernels::cuda
