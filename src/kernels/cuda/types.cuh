// Element types and 16-byte accesses of the CUDA kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/cuda/check.hpp"
#include "core/dtype.hpp"

namespace trireme {

template <>
inline constexpr DType dtype_of<__nv_bfloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<__half> = DType::f16;

namespace kernels::cuda {

/// Calls function(T{}) with the CUDA type of `dtype`: float, __nv_bfloat16 or __half. Throws
/// InternalError for fp64, which no CUDA kernel computes in.
template <typename Function>
decltype(auto) dispatch_cuda(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::bf16:
      return function(__nv_bfloat16{});
    case DType::f16:
      return function(__half{});
    case DType::f32:
      return function(float{});
    case DType::f64:
      throw InternalError("CUDA kernels do not compute in {}", name_of(dtype));
  }
  throw_unknown_dtype(dtype);
}

/// The value of an element, and an element rounded to nearest from a value.
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

/// Sixteen bytes of consecutive elements: what one thread reads or writes at a time.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

/// The pack at `pointer`, which must be aligned to 16 bytes.
template <typename T>
__device__ __forceinline__ Pack<T> load_pack(const T* pointer) {
  return *reinterpret_cast<const Pack<T>*>(pointer);
}
template <typename T>
__device__ __forceinline__ void store_pack(T* pointer, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(pointer) = pack;
}

}  // namespace kernels::cuda
}  // namespace trireme
