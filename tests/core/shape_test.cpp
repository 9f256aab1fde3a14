#include "core/shape.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme {
namespace {

TEST(Shape, SizeStrideAndText) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.size(), 24);
  EXPECT_EQ(shape.stride(0), 12);
  EXPECT_EQ(shape.stride(2), 1);
  EXPECT_EQ(to_string(shape), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.size(), 1);
  EXPECT_EQ((Shape{0, 5}).size(), 0);
}

TEST(Shape, RefusesFiveAxes) { EXPECT_THROW((Shape{1, 1, 1, 1, 1}), InternalError); }

}  // namespace
}  // namespace trireme
