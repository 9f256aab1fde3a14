// Half precision on the host: rounding to and from the two 16-bit types.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace trireme {

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
