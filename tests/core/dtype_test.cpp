#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trireme {
namespace {

constexpr DType kNoType = static_cast<DType>(77);

TEST(DType, HasASizeANameAndAnAccumulationType) {
  EXPECT_EQ(size_of(DType::f64), 8u);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::float8_e4m3), 1u);
  EXPECT_EQ(name_of(DType::float8_e5m2), "fp8-e5m2");
  EXPECT_EQ(accumulation_type(DType::float8_e4m3), DType::f32);
  EXPECT_EQ(name_of(DType::f16), "fp16");
  EXPECT_EQ(accumulation_type(DType::bf16), DType::f32);
  EXPECT_EQ(accumulation_type(DType::f64), DType::f64);
}

TEST(DType, AValueThatIsNoTypeIsAnInternalError) {
  EXPECT_THROW(size_of(kNoType), InternalError);
  EXPECT_THROW(name_of(kNoType), InternalError);
  EXPECT_THROW(accumulation_type(kNoType), InternalError);
  EXPECT_THROW(dispatch(kNoType, [](auto) {}), InternalError);
  EXPECT_THROW(dispatch(DType::bf16, [](auto) {}), InternalError);
}

// Every finite number of the type comes back, and halfway points go to even.
TEST(SixteenBitTypes, EveryNumberOfEitherTypeSurvives) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (const float value = from_bf16(half); !std::isnan(value)) {
      EXPECT_EQ(to_bf16(value), half);
    }
    if (const float value = from_f16(half); !std::isnan(value)) {
      EXPECT_EQ(to_f16(value), half);
    }
  }
}

TEST(SixteenBitTypes, RoundsToNearestTiesToEven) {
  const auto expect_between = [](float low, float high, auto to, auto from) {
    const float middle = 0.5f * low + 0.5f * high;
    EXPECT_EQ(from(to(std::nextafter(middle, low))), low);
    EXPECT_EQ(from(to(std::nextafter(middle, high))), high);
    EXPECT_EQ(to(middle) % 2, 0) << low << " " << high;
  };
  for (const int bits : {0x0000, 0x0001, 0x0080, 0x3F80, 0x3F81, 0x4700, 0x7F00})
    expect_between(from_bf16(bits), from_bf16(bits + 1), to_bf16, from_bf16);
  for (const int bits : {0x0000, 0x0001, 0x0002, 0x03FF, 0x0400, 0x3C00, 0x3C01, 0x7BFE})
    expect_between(from_f16(bits), from_f16(bits + 1), to_f16, from_f16);
}

TEST(SixteenBitTypes, KeepsSignsInfinitiesAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_bf16(to_bf16(-infinity)), -infinity);
  EXPECT_EQ(from_f16(to_f16(-infinity)), -infinity);
  EXPECT_EQ(from_f16(to_f16(65520.0f)), infinity);
  EXPECT_EQ(from_f16(to_f16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(from_f16(to_f16(std::nanf("")))));
  EXPECT_TRUE(std::signbit(from_f16(to_f16(-0.0f))));
  EXPECT_EQ(from_f16(to_f16(-0x1p-24f)), -0x1p-24f);
}

struct Fp8 {
  DType dtype;
  std::uint8_t (*to)(float);
  float (*from)(std::uint8_t);
  std::uint8_t largest;  ///< code of the largest finite number
};
constexpr Fp8 kFp8Types[] = {{DType::float8_e4m3, to_e4m3, from_e4m3, 0x7E},
                             {DType::float8_e5m2, to_e5m2, from_e5m2, 0x7B}};

TEST(Fp8Types, EveryCodeSurvives) {
  for (const Fp8& type : kFp8Types) {
    int finite = 0;
    for (int code = 0; code < 256; ++code) {
      const float value = type.from(static_cast<std::uint8_t>(code));
      if (!std::isfinite(value)) continue;
      ++finite;
      EXPECT_EQ(type.to(value), code) << name_of(type.dtype);
    }
    EXPECT_EQ(finite, 2 * (type.largest + 1)) << name_of(type.dtype);
    EXPECT_EQ(type.from(type.largest), fp8_max(type.dtype));
  }
}

// Between two neighbours the nearer one, halfway the even code.
TEST(Fp8Types, RoundsToNearestTiesToEven) {
  for (const Fp8& type : kFp8Types)
    for (int code = 0; code < type.largest; ++code) {
      const float low = type.from(static_cast<std::uint8_t>(code));
      const float high = type.from(static_cast<std::uint8_t>(code + 1));
      const float middle = 0.5f * low + 0.5f * high;
      EXPECT_EQ(type.to(std::nextafter(middle, low)), code);
      EXPECT_EQ(type.to(std::nextafter(middle, high)), code + 1);
      EXPECT_EQ(type.to(middle), code % 2 == 0 ? code : code + 1);
      EXPECT_EQ(type.to(-middle), 0x80 + (code % 2 == 0 ? code : code + 1));
    }
}

// Values that an independent implementation gives.
TEST(Fp8Types, RoundsAsOthersDo) {
  const auto e4m3 = [](double value) { return from_e4m3(to_e4m3(static_cast<float>(value))); };
  EXPECT_EQ(e4m3(463.9), 448.0f);
  EXPECT_EQ(e4m3(17.0), 16.0f);
  EXPECT_EQ(e4m3(19.0), 20.0f);
  EXPECT_EQ(e4m3(0.07), 0.0703125f);
  EXPECT_EQ(e4m3(0x1p-10), 0.0f);
  EXPECT_EQ(e4m3(1.0001 * 0x1p-10), 0x1p-9f);
  EXPECT_EQ(e4m3(1.5 * 0x1p-9), 0x1p-8f);
  EXPECT_EQ(e4m3(2.5 * 0x1p-9), 0x1p-8f);
  EXPECT_EQ(from_e5m2(to_e5m2(1.125f)), 1.0f);
  EXPECT_EQ(from_e5m2(0x01), 0x1p-16f);
}

TEST(Fp8Types, SaturatesAndKeepsSignsAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Fp8& type : kFp8Types) {
    const float max = fp8_max(type.dtype);
    for (const float large : {max, 1.0001f * max, 2.0f * max, 3e38f, infinity}) {
      EXPECT_EQ(type.to(large), type.largest);
      EXPECT_EQ(type.to(-large), 0x80 + type.largest);
    }
    EXPECT_EQ(type.to(std::nanf("")), 0x7F);
    EXPECT_EQ(type.to(-std::nanf("")), 0x7F);
    EXPECT_TRUE(std::isnan(type.from(0x7F)));
    EXPECT_EQ(type.to(-0.0f), 0x80);
    EXPECT_EQ(type.to(std::numeric_limits<float>::denorm_min()), 0);
  }
  EXPECT_EQ(from_e5m2(0x7C), infinity);
  EXPECT_THROW(fp8_max(DType::bf16), InternalError);
}

TEST(SixteenBitTypes, ConvertsArraysOfEveryType) {
  const std::vector<float> values = {0.0f, 1.0f, -2.5f, 1024.0f};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::float8_e5m2}) {
    std::vector<std::byte> elements(values.size() * size_of(dtype));
    std::vector<float> back(values.size());
    convert_from_float(values.data(), values.size(), dtype, elements.data());
    convert_to_float(elements.data(), values.size(), dtype, back.data());
    EXPECT_EQ(back, values) << name_of(dtype);
  }
}

}  // namespace
}  // namespace trireme
