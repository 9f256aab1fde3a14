#include "kernels/preconditions.hpp"

#include <gtest/gtest.h>

#include "../message_of.hpp"
#include "core/error.hpp"

namespace trireme::kernels {
namespace {

float memory[24];

Tensor tensor(const Shape& shape) { return {memory, DType::f32, shape}; }

void expect_refused(const std::string& refused, const std::string& text) {
  EXPECT_NE(refused.find(text), std::string::npos) << "'" << refused << "'";
}

TEST(Preconditions, ExtentsFoldLeadingAxesIntoRows) {
  const Extents extents = extents_of("op", "x", tensor({2, 3, 4}));
  EXPECT_EQ(extents.rows, 6);
  EXPECT_EQ(extents.columns, 4);
  EXPECT_EQ(extents_of("op", "x", tensor({5})).rows, 1);
  EXPECT_EQ(extents_of("op", "x", tensor({5, 0})).rows, 0);
  expect_refused(message_of<InternalError>([] { extents_of("op", "x", tensor({})); }),
                 "op: x has no axis");
}

TEST(Preconditions, MatricesHaveTypeRowsAndColumns) {
  const auto check = [](const Tensor& x, DType dtype, const Extents& extents) {
    return message_of<InternalError>([&] { check_matrix("op", "x", x, dtype, extents); });
  };
  EXPECT_EQ(check(tensor({2, 3, 4}), DType::f32, {6, 4}), "");
  expect_refused(check(tensor({2, 3, 4}), DType::f32, {4, 6}),
                 "op: x is [2, 3, 4], expected 4 rows of 6");
  expect_refused(check(tensor({6, 4}), DType::bf16, {6, 4}), "op: x is fp32, expected bf16");
  expect_refused(check({nullptr, DType::f32, {6, 4}}, DType::f32, {6, 4}), "op: x has no memory");
}

TEST(Preconditions, NothingNeedsNoMemory) {
  EXPECT_NO_THROW(check_matrix("op", "x", {nullptr, DType::f32, {0, 4}}, DType::f32, {0, 4}));
  EXPECT_NO_THROW(check_vector("op", "x", {nullptr, DType::f32, {0}}, DType::f32, 0));
}

TEST(Preconditions, VectorsHaveASizeAndShapesAxes) {
  EXPECT_NO_THROW(check_vector("op", "x", tensor({2, 3}), DType::f32, 6));
  expect_refused(message_of<InternalError>([] {
                   check_vector("op", "x", tensor({2, 3}), DType::f32, 5);
                 }),
                 "op: x is [2, 3], expected 5 elements");
  EXPECT_NO_THROW(check_shape("op", "x", tensor({2, 3}), DType::f32, {2, 3}));
  expect_refused(message_of<InternalError>([] {
                   check_shape("op", "x", tensor({2, 3}), DType::f32, {3, 2});
                 }),
                 "op: x is [2, 3], expected [3, 2]");
}

}  // namespace
}  // namespace trireme::kernels
