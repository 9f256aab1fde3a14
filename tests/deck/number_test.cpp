#include "deck/number.hpp"

#include <gtest/gtest.h>

#include "deck/value.hpp"

namespace trireme::deck {
namespace {

TEST(Number, WholeNumbersAreExactInAnyForm) {
  EXPECT_EQ(parse_whole("0"), 0);
  EXPECT_EQ(parse_whole("1_000"), 1000);
  EXPECT_EQ(parse_whole("-1.5e9"), -1'500'000'000);
  EXPECT_EQ(parse_whole("120e-1"), 12);
  EXPECT_EQ(parse_whole("9223372036854775807"), INT64_MAX);
  for (const char* text : {"1.5", "1e-1", "", "e9", "1__0", "_1", "1_", "0x10", "12 "})
    EXPECT_THROW(parse_whole(text), BadValue) << text;
  EXPECT_THROW(parse_whole("9223372036854775808"), BadValue);
  EXPECT_THROW(parse_whole("1e9999999999"), BadValue);
}

TEST(Number, RealNumbersAreRoundedOnce) {
  EXPECT_EQ(parse_real("0.1"), 0.1);
  EXPECT_EQ(parse_real("-2_0.5e-3"), -0.0205);
  EXPECT_THROW(parse_real("1e999"), BadValue);
  EXPECT_THROW(parse_real("1.5 hours"), BadValue);
}

TEST(Number, IsToldFromText) {
  EXPECT_TRUE(is_decimal("-.5e+3"));
  EXPECT_FALSE(is_decimal("data_1"));
  EXPECT_THROW(is_decimal("010"), BadValue);
}

}  // namespace
}  // namespace trireme::deck
