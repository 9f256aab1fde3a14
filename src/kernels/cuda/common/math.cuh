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

/// gelu_tanh(x) = x s for results that are rounded to T. Far left s is zero.
template <typename T>
struct Gelu {
  static constexpr float kSlope = 1.5957691216057307f;  // 2 sqrt(2/pi)
  static constexpr float kCubic = 0.044715f;

  float square, s;

  __device__ explicit Gelu(float x) : square(x * x) {
    constexpr float kScale = -kSlope * kLog2E;
    s = reciprocal<T>(1.0f + power_of_two<T>(x * (kScale + kScale * kCubic * square)));
  }

  __device__ float value(float x) const { return x * s; }
  /// s + x s (1 - s) d(2u)/dx.
  __device__ float derivative(float x) const {
    return s + fmaf(-s, s, s) * (x * (kSlope + 3.0f * kSlope * kCubic * square));
  }
};

/// gelu(x) = x share for results that are rounded to T, share being that of the normal distribution
/// below x, of a density without its factor 1 / sqrt(2 pi). For the 16-bit types by Abramowitz and
/// Stegun, "Handbook of mathematical functions" (1964), formula 7.1.26: an error of 1e-7.
template <typename T>
struct ExactGelu {
  float share, density;

  __device__ explicit ExactGelu(float x) {
    if constexpr (std::is_same_v<T, float>) {
      density = expf(-0.5f * x * x);
      share = 0.5f * erfcf(x * -0.70710678f);
    } else {
      density = power_of_two<T>(x * x * (-0.5f * kLog2E));
      const float t = reciprocal<T>(fmaf(fabsf(x), 0.3275911f * 0.70710678f, 1.0f));
      float tail = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
      tail = fmaf(t, tail, 0.5f * 1.421413741f);
      tail = fmaf(t, tail, 0.5f * -0.284496736f);
      tail = fmaf(t, tail, 0.5f * 0.254829592f);
      tail *= t * density;
      share = x < 0.0f ? tail : 1.0f - tail;
    }
  }

  __device__ float value(float x) const { return x * share; }
  __device__ float derivative(float x) const { return fmaf(x * 0.39894228f, density, share); }
};

/// tanh(x).
struct Tanh {
  float y;

  __device__ explicit Tanh(float x) : y(tanhf(x)) {}

  __device__ float value(float) const { return y; }
  __device__ float derivative(float) const { return fmaf(-y, y, 1.0f); }
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

/// The activation function of SwiGLU: silu(x) = x s for results that are rounded to T. Far left s
/// is zero.
template <typename T>
struct Silu {
  float s;

  __device__ explicit Silu(float x) : s(reciprocal<T>(1.0f + power_of_two<T>(x * -kLog2E))) {}

  __device__ float value(float x) const { return x * s; }
  __device__ float derivative(float x) const { return s * fmaf(x, 1.0f - s, 1.0f); }
};

}  // namespace trireme::kernels::cuda
