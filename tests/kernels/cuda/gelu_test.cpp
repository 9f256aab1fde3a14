#include "workbench.hpp"

namespace trireme::kernels {
namespace {

// What the hardware's exponential leaves in sums over thousands of rows.
constexpr double kSumFloor = 5e-6;

const char* text_of(Activation function) {
  return function == Activation::gelu_tanh ? "gelu_tanh"
         : function == Activation::gelu    ? "gelu"
         : function == Activation::silu    ? "silu"
                                           : "tanh";
}

void expect_agreement(Activation function) {
  for (const DType dtype : kStorageTypes) {
    for (const Shape shape : {Shape{1, 1}, Shape{3, 7}, Shape{5, 3, 40}, Shape{1000, 3072},
                              Shape{37, 1601}, Shape{3, 49152}}) {
      expect_as_on_host(std::string(text_of(function)) + " of " + to_string(shape), dtype,
                        [&](Workbench& bench) -> std::vector<Output> {
                          const Tensor x = bench.random(shape, 1, 2.0), out = bench.poisoned(shape);
                          bench.backend().gelu_forward({.x = x, .out = out, .function = function});
                          return {{"out", out}};
                        });
      for (const char* place : {"apart", "over dout", "over x"}) {
        expect_as_on_host(
            fmt::format("{} gradient of {}, {}", text_of(function), to_string(shape), place), dtype,
            [&](Workbench& bench) -> std::vector<Output> {
              const std::int64_t n = shape[shape.rank() - 1];
              const Tensor dout = bench.random(shape, 2), x = bench.random(shape, 1, 2.0);
              const Tensor dx = place == std::string("over dout") ? dout
                                : place == std::string("over x")  ? x
                                                                  : bench.poisoned(shape);
              const Tensor dbias = bench.wide_random({n}, 3);
              bench.backend().gelu_backward(
                  {.dout = dout, .x = x, .dx = dx, .dbias = dbias, .function = function});
              return {{"dx", dx}, {"dbias", dbias}};
            },
            kSumFloor);
      }
    }
  }
}

TEST(Gelu, AgreesWithTheHost) { expect_agreement(Activation::gelu_tanh); }
TEST(Gelu, ExactGeluAgreesWithTheHost) { expect_agreement(Activation::gelu); }
TEST(Gelu, TanhAgreesWithTheHost) { expect_agreement(Activation::tanh); }
TEST(Gelu, SiluAgreesWithTheHost) { expect_agreement(Activation::silu); }

TEST(Gelu, GatesAgreeWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const Activation function : {Activation::silu, Activation::gelu_tanh, Activation::gelu})
      for (const Shape shape : {Shape{1, 1}, Shape{3, 7}, Shape{5, 3, 40}, Shape{700, 1408},
                                Shape{37, 801}, Shape{3, 28672}}) {
        const std::string title =
            fmt::format("gate of {}, {}", to_string(shape), text_of(function));
        Shape both = shape;
        both[shape.rank() - 1] *= 2;
        expect_as_on_host(title, dtype, [&](Workbench& bench) -> std::vector<Output> {
          const Tensor out = bench.poisoned(shape);
          bench.backend().gated_forward(
              {.x = bench.random(both, 1, 2.0), .out = out, .function = function});
          return {{"out", out}};
        });
        for (const bool over_x : {false, true})
          expect_as_on_host(
              title + " gradient", dtype, [&](Workbench& bench) -> std::vector<Output> {
                const Tensor x = bench.random(both, 1, 2.0);
                const Tensor dx = over_x ? x : bench.poisoned(both);
                bench.backend().gated_backward(
                    {.dout = bench.random(shape, 2), .x = x, .dx = dx, .function = function});
                return {{"dx", dx}};
              });
      }
}

TEST(Gelu, IsTheIdentityFarRightAndZeroFarLeft) {
  for (const DType dtype : kStorageTypes) {
    for (const Activation function : {Activation::gelu_tanh, Activation::gelu}) {
      const std::vector<double> far = {-60000.0, -100.0, -20.0, 0.0, 20.0, 100.0, 60000.0, 0.0};
      const std::vector<double> x = rounded(far, dtype);
      Workbench bench(true, dtype, dtype);
      const Tensor in = bench.given({8}, x), out = bench.poisoned({8}), dx = bench.poisoned({8});
      const Tensor dout = bench.given({8}, std::vector<double>(8, 1.0));
      const Tensor dbias = bench.wide_given({8}, std::vector<double>(8, 0.0));
      gpu().gelu_forward({.x = in, .out = out, .function = function});
      gpu().gelu_backward({.dout = dout, .x = in, .dx = dx, .dbias = dbias, .function = function});
      const std::vector<double> values = bench.read(out), slopes = bench.read(dx);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(values[i], x[i] > 0.0 ? x[i] : 0.0, 1e-18) << name_of(dtype) << ", " << x[i];
        EXPECT_NEAR(slopes[i], x[i] > 0.0 ? 1.0 : x[i] < 0.0 ? 0.0 : 0.5, 1e-18) << x[i];
      }
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
