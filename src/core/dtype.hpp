// Element types of tensors.
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme {

/// Storage type of a tensor's elements. f64 serves gradient checks; f32 trains on the host.
enum class DType { f32, f64 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) { return dtype == DType::f64 ? 8 : 4; }

/// "fp32" or "fp64".
constexpr std::string_view name_of(DType dtype) { return dtype == DType::f64 ? "fp64" : "fp32"; }

/// The DType of a C++ type: dtype_of<float> is DType::f32.
template <typename T>
inline constexpr DType dtype_of = sizeof(T) == 8 ? DType::f64 : DType::f32;

/// Calls `function(T{})` with the C++ type of `dtype`: the one place where run-time types become
/// templates.
template <typename Function>
decltype(auto) dispatch(DType dtype, Function&& function) {
  return dtype == DType::f64 ? function(double{}) : function(float{});
}

}  // namespace trireme
