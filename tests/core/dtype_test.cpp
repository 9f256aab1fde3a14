#include "core/dtype.hpp"

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

TEST(SixteenBitTypes, ConvertsArraysOfEveryType) {
  const std::vector<float> values = {0.0f, 1.0f, -2.5f, 1024.0f};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    std::vector<std::byte> elements(values.size() * size_of(dtype));
    std::vector<float> back(values.size());
    convert_from_float(values.data(), values.size(), dtype, elements.data());
    convert_to_float(elements.data(), values.size(), dtype, back.data());
    EXPECT_EQ(back, values) << name_of(dtype);
  }
}

}  // namespace
}  // namespace trireme
