// Element types of tensors, and rounding to and from the 16-bit ones on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.hpp"

namespace trireme {

/// Storage type of a tensor's elements. f64 serves gradient checks; f32 trains on the host; the
/// 16-bit types bf16 and f16 hold activations and weights on GPUs, and on the host in tests.
///
/// Switches over it name every value and have no `default`: a new type does not compile until each
/// of them handles it.
enum class DType { f32, f64, bf16, f16 };

/// Throws InternalError for a value that is no DType: the end of every switch over them.
[[noreturn]] void throw_unknown_dtype(DType dtype);

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
  }
  throw_unknown_dtype(dtype);
}

/// "fp32", "fp64", "bf16" or "fp16".
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::f64:
      return "fp64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
  }
  throw_unknown_dtype(dtype);
}

/// The accumulation type of `dtype`, in which sums, statistics, parameter gradients and master
/// copies are kept: fp32 for the 16-bit types, else the type itself.
constexpr DType accumulation_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return DType::f64;
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return DType::f32;
  }
  throw_unknown_dtype(dtype);
}

/// The DType of a C++ type: dtype_of<float> is DType::f32.
template <typename T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;

/// Calls `function(T{})` with the C++ type of `dtype`, fp32 or fp64: the one place where run-time
/// types become templates on the host. Throws InternalError for the 16-bit types, in which the host
/// stores but does not compute.
template <typename Function>
decltype(auto) dispatch(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32:
      return function(float{});
    case DType::f64:
      return function(double{});
    case DType::bf16:
    case DType::f16:
      throw InternalError("the host does not compute in {}", name_of(dtype));
  }
  throw_unknown_dtype(dtype);
}

/// The bits of `value` rounded to bf16, to nearest, ties to even. NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

/// The value of the bf16 number with these bits.
inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The bits of `value` rounded to fp16 (IEEE binary16), to nearest, ties to even; too large values
/// become infinity.
std::uint16_t to_f16(float value);

/// The value of the fp16 number with these bits.
float from_f16(std::uint16_t bits);

/// Writes `count` values as elements of `dtype`, rounded once to nearest.
void convert_from_float(const float* values, std::size_t count, DType dtype, void* elements);

/// Writes `count` elements of `dtype` as floats (fp64 is rounded).
void convert_to_float(const void* elements, std::size_t count, DType dtype, float* values);

}  // namespace trireme
