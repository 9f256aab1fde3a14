// Element types of tensors.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/error.hpp"

namespace trireme {

/// Storage type of a tensor's elements. f64 serves gradient checks; f32 trains on the host; bf16
/// and f16, the half types, hold activations and weights on GPUs, and on the host in tests.
enum class DType { f32, f64, bf16, f16 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    default:
      return 2;
  }
}

/// "fp32", "fp64", "bf16" or "fp16".
constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"fp32", "fp64", "bf16", "fp16"};
  return kNames[static_cast<int>(dtype)];
}

/// The type in which values of `dtype` are summed and their statistics, parameter gradients and
/// master copies are kept: fp32 for the half types, else the type itself.
constexpr DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// The DType of a C++ type: dtype_of<float> is DType::f32.
template <typename T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;

/// Calls `function(T{})` with the C++ type of `dtype`, fp32 or fp64: the one place where run-time
/// types become templates on the host. Throws InternalError for the half types, in which the host
/// stores but does not compute.
template <typename Function>
decltype(auto) dispatch(DType dtype, Function&& function) {
  TRIREME_CHECK(dtype == DType::f32 || dtype == DType::f64, "the host does not compute in {}",
                name_of(dtype));
  return dtype == DType::f64 ? function(double{}) : function(float{});
}

}  // namespace trireme
