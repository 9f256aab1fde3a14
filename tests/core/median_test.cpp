#include "core/median.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme {
namespace {

TEST(Median, OfAnOddNumberIsTheMiddleOne) {
  EXPECT_EQ(median<double>({3}), 3);
  EXPECT_EQ(median<double>({9, 1, 5}), 5);
  EXPECT_EQ(median<int>({2, 2, 7, 1, 2}), 2);
}

TEST(Median, OfAnEvenNumberIsTheLowerOne) {
  EXPECT_EQ(median<double>({4, 1}), 1);
  EXPECT_EQ(median<float>({8, 2, 6, 4}), 4);
}

TEST(Median, OfNothingIsRefused) { EXPECT_THROW(median<double>({}), InternalError); }

}  // namespace
}  // namespace trireme
