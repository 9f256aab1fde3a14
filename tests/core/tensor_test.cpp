#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <vector>

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

// A view of scaled elements has the same values.
TEST(Tensor, ViewsKeepTheScale) {
  std::vector<float> elements(12);
  const float scale = 0.5f;
  const Tensor tensor{elements.data(), DType::f32, {3, 4}, &scale};
  EXPECT_EQ(tensor.view({12}).scale, &scale);
  EXPECT_EQ(tensor.rows(1, 2).scale, &scale);
  EXPECT_EQ(tensor.rows(1, 2).data, elements.data() + 4);
  EXPECT_EQ((Tensor{elements.data(), DType::f32, {12}}).scale, nullptr);
}

}  // namespace
}  // namespace trireme
