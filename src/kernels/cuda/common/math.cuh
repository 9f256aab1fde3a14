// Elementary functions, as accurate as the storage type makes worthwhile.
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

}  // namespace trireme::kernels::cuda
