#include "core/dtype.hpp"

#include <cmath>

namespace trireme {

void throw_unknown_dtype(DType dtype) {
  throw InternalError("unknown element type {}", static_cast<int>(dtype));
}

std::uint16_t to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;   // NaN
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // rounds above 65504, or infinite
  if (magnitude < 0x38800000u) {                        // subnormal: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 16777216.0f;
    return sign | static_cast<std::uint16_t>(std::nearbyint(scaled));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13);
}

float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u)
    return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) / 16777216.0f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

void convert_from_float(const float* values, std::size_t count, DType dtype, void* elements) {
  const auto write = [&](auto* out, auto&& convert) {
#pragma omp parallel for simd schedule(static)
    for (std::size_t i = 0; i < count; ++i) out[i] = convert(values[i]);
  };
  switch (dtype) {
    case DType::f32:
      return write(static_cast<float*>(elements), [](float value) { return value; });
    case DType::f64:
      return write(static_cast<double*>(elements), [](float value) { return double{value}; });
    case DType::bf16:
      return write(static_cast<std::uint16_t*>(elements), to_bf16);
    case DType::f16:
      return write(static_cast<std::uint16_t*>(elements), to_f16);
  }
  throw_unknown_dtype(dtype);
}

void convert_to_float(const void* elements, std::size_t count, DType dtype, float* values) {
  const auto read = [&](const auto* in, auto&& convert) {
#pragma omp parallel for simd schedule(static)
    for (std::size_t i = 0; i < count; ++i) values[i] = convert(in[i]);
  };
  switch (dtype) {
    case DType::f32:
      return read(static_cast<const float*>(elements), [](float value) { return value; });
    case DType::f64:
      return read(static_cast<const double*>(elements),
                  [](double value) { return static_cast<float>(value); });
    case DType::bf16:
      return read(static_cast<const std::uint16_t*>(elements), from_bf16);
    case DType::f16:
      return read(static_cast<const std::uint16_t*>(elements), from_f16);
  }
  throw_unknown_dtype(dtype);
}

}  // namespace trireme
