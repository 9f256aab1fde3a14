#include "workbench.hpp"

namespace trireme::kernels {
namespace {

TEST(BiasGradient, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes) {
    for (const Shape shape : {Shape{1, 1}, Shape{9, 7}, Shape{5, 3, 40}, Shape{4099, 768},
                              Shape{700, 1600}, Shape{33, 12288}, Shape{501, 333}}) {
      expect_as_on_host("bias gradient of " + to_string(shape), dtype,
                        [&](Workbench& bench) -> std::vector<Output> {
                          const Tensor dout = bench.random(shape, 1);
                          const Tensor dbias = bench.wide_random({shape[shape.rank() - 1]}, 2);
                          bench.backend().bias_gradient({.dout = dout, .dbias = dbias});
                          return {{"dbias", dbias}};
                        });
    }
  }
}

TEST(BiasGradient, OfNoRowsAddsNothing) {
  const OnGpu dout({0, 3}, DType::bf16), dbias({3}, DType::f32, {1.0, 2.0, 3.0});
  gpu().bias_gradient({.dout = dout.tensor(), .dbias = dbias.tensor()});
  EXPECT_EQ(dbias.read(), (std::vector<double>{1.0, 2.0, 3.0}));
}

}  // namespace
}  // namespace trireme::kernels
