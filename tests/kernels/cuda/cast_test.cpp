#include "device_testing.hpp"

namespace trireme::kernels {
namespace {

TEST(Cast, RoundsToNearest) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t size : {1, 7, 100003}) {
      const std::vector<double> x = random_values(size, 1, DType::f32, 3.0);
      const OnGpu in({size}, DType::f32, x), out({size}, dtype);
      gpu().cast({.x = in.tensor(), .out = out.tensor()});
      EXPECT_EQ(out.read(), rounded(x, dtype)) << name_of(dtype) << ", " << size;
    }
  }
}

TEST(Cast, WidensWithoutLoss) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t size : {1, 7, 100003}) {
      const std::vector<double> x = rounded(random_values(size, 1, DType::f32, 3.0), dtype);
      const OnGpu in({size}, dtype, x), out({size}, DType::f32);
      gpu().cast({.x = in.tensor(), .out = out.tensor()});
      EXPECT_EQ(out.read(), x) << name_of(dtype) << ", " << size;
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
