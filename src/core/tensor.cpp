#include "core/tensor.hpp"

#include <algorithm>
#include <cmath>

namespace trireme {

void throw_unknown_dtype(DType dtype) {
  throw InternalError("unknown element type {}", static_cast<int>(dtype));
}

namespace {

/// A sign, an exponent with this bias, and kMantissa bits; kMax is the code of the largest finite
/// number.
template <int kMantissa, int kBias, std::uint8_t kMax>
std::uint8_t to_fp8(float value, float max) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7F;  // NaN
  if (magnitude >= std::bit_cast<std::uint32_t>(max)) return sign | kMax;
  if (magnitude < static_cast<std::uint32_t>(128 - kBias) << 23) {  // subnormal
    const float units =
        std::bit_cast<float>(static_cast<std::uint32_t>(126 + kBias + kMantissa) << 23);
    return sign |
           static_cast<std::uint8_t>(std::nearbyint(std::bit_cast<float>(magnitude) * units));
  }
  constexpr int kShift = 23 - kMantissa;
  constexpr std::uint32_t kBelowHalf = (1u << (kShift - 1)) - 1;
  const std::uint32_t rounded = magnitude + kBelowHalf + (magnitude >> kShift & 1);
  return sign | static_cast<std::uint8_t>(
                    (rounded - (static_cast<std::uint32_t>(127 - kBias) << 23)) >> kShift);
}

}  // namespace

std::uint8_t to_e4m3(float value) { return to_fp8<3, 7, 0x7E>(value, fp8_max(DType::float8_e4m3)); }

std::uint8_t to_e5m2(float value) {
  return to_fp8<2, 15, 0x7B>(value, fp8_max(DType::float8_e5m2));
}

float from_e4m3(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t magnitude = bits & 0x7Fu;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) / 512.0f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// The upper half of an fp16 number.
float from_e5m2(std::uint8_t bits) { return from_f16(static_cast<std::uint16_t>(bits << 8)); }

namespace {

/// What a thread converts at a time. Waking threads for fewer values takes longer than converting
/// them: milliseconds where other programs use the cores.
constexpr std::int64_t kBlock = 1 << 14;

/// A function as an object, which loops inline.
template <auto kFunction>
constexpr auto kInline = [](auto value) { return kFunction(value); };

template <typename From, typename To, typename Convert>
void convert_block(const From* __restrict in, std::int64_t count, To* __restrict out,
                   Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = convert(in[i]);
}

template <typename From, typename To, typename Convert>
void convert_each(const From* in, std::size_t size, To* out, Convert convert) {
  const auto count = static_cast<std::int64_t>(size);
  if (count <= kBlock) return convert_block(in, count, out, convert);
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < count; begin += kBlock)
    convert_block(in + begin, std::min(kBlock, count - begin), out + begin, convert);
}

}  // namespace

void convert_from_float(const float* values, std::size_t count, DType dtype, void* elements) {
  const auto write = [&](auto* out, auto convert) { convert_each(values, count, out, convert); };
  switch (dtype) {
    case DType::f32:
      return write(static_cast<float*>(elements), [](float value) { return value; });
    case DType::f64:
      return write(static_cast<double*>(elements), [](float value) { return double{value}; });
    case DType::bf16:
      return write(static_cast<std::uint16_t*>(elements), kInline<to_bf16>);
    case DType::f16:
      return write(static_cast<std::uint16_t*>(elements), kInline<to_f16>);
    case DType::float8_e4m3:
      return write(static_cast<std::uint8_t*>(elements), kInline<to_e4m3>);
    case DType::float8_e5m2:
      return write(static_cast<std::uint8_t*>(elements), kInline<to_e5m2>);
  }
  throw_unknown_dtype(dtype);
}

void convert_to_float(const void* elements, std::size_t count, DType dtype, float* values) {
  const auto read = [&](const auto* in, auto convert) { convert_each(in, count, values, convert); };
  switch (dtype) {
    case DType::f32:
      return read(static_cast<const float*>(elements), [](float value) { return value; });
    case DType::f64:
      return read(static_cast<const double*>(elements),
                  [](double value) { return static_cast<float>(value); });
    case DType::bf16:
      return read(static_cast<const std::uint16_t*>(elements), kInline<from_bf16>);
    case DType::f16:
      return read(static_cast<const std::uint16_t*>(elements), kInline<from_f16>);
    case DType::float8_e4m3:
      return read(static_cast<const std::uint8_t*>(elements), kInline<from_e4m3>);
    case DType::float8_e5m2:
      return read(static_cast<const std::uint8_t*>(elements), kInline<from_e5m2>);
  }
  throw_unknown_dtype(dtype);
}

// ---- shapes

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  TRIREME_CHECK(extents.size() <= extents_.size(), "{} extents; at most 4 are held",
                extents.size());
  for (std::int64_t extent : extents) extents_[rank_++] = extent;
}

std::int64_t Shape::size() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) product *= extents_[axis];
  return product;
}

std::int64_t Shape::stride(int axis) const {
  std::int64_t product = 1;
  for (int later = axis + 1; later < rank_; ++later) product *= extents_[later];
  return product;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis)
    text += fmt::format("{}{}", axis ? ", " : "", shape[axis]);
  return text + "]";
}

}  // namespace trireme
