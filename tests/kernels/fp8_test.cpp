#include "kernels/fp8.hpp"

#include <algorithm>
#include <cstdint>

#include "kernel_testing.hpp"
#include "kernels/gelu.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels {
namespace {

/// FP8 codes with a scale.
struct Codes {
  Codes(Shape shape_in, DType dtype_in, float scale_in = 1.0f)
      : shape(shape_in), dtype(dtype_in), scale(scale_in), bytes(shape.size(), 0xFF) {}

  Tensor tensor() { return {bytes.data(), dtype, shape, &scale}; }
  double value(std::int64_t i) const {
    return dtype == DType::float8_e4m3 ? from_e4m3(bytes[i]) : from_e5m2(bytes[i]);
  }

  Shape shape;
  DType dtype;
  float scale;
  std::vector<std::uint8_t> bytes;
};

constexpr DType kTypes[] = {DType::float8_e4m3, DType::float8_e5m2};

float amax_of(Owned<float>& x) {
  Owned<float> amax({1});
  host::amax({x.tensor(), amax.tensor()});
  return static_cast<float>(amax[0]);
}

TEST(Amax, IsTheLargestMagnitude) {
  for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{700, 333}}) {
    Owned<float> x = Owned<float>::random(shape, 1);
    float expected = 0.0f;
    for (std::int64_t i = 0; i < x.size(); ++i)
      expected = std::max(expected, std::abs(static_cast<float>(x[i])));
    EXPECT_EQ(amax_of(x), expected);
    x[x.size() - 1] = -100.0f;
    EXPECT_EQ(amax_of(x), 100.0f);
  }
}

TEST(Amax, KeepsNaNAndInfinity) {
  Owned<float> x({40000}, 1.0);
  x[17] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(amax_of(x), std::numeric_limits<float>::infinity());
  x[39999] = -std::nanf("");
  EXPECT_TRUE(std::isnan(amax_of(x)));
}

TEST(Fp8Factor, MapsTheLargestToTheLargest) {
  EXPECT_EQ(fp8_factor(7.0f, 448.0f), 64.0f);
  EXPECT_EQ(fp8_factor(0.0f, 448.0f), 1.0f);
  EXPECT_EQ(fp8_factor(1e-44f, 448.0f), 0x1p126f);
  EXPECT_TRUE(std::isnormal(1.0f / fp8_factor(1e-44f, 57344.0f)));
  EXPECT_EQ(fp8_factor(std::numeric_limits<float>::infinity(), 448.0f), 0.0f);
  EXPECT_TRUE(std::isnan(fp8_factor(std::nanf(""), 448.0f)));
}

TEST(Quantize, RoundsTheScaledElementsInBothLayouts) {
  for (const DType dtype : kTypes)
    for (const auto& [rows, columns] : {std::pair{1, 1}, {7, 5}, {64, 48}, {33, 130}}) {
      Owned<float> x = Owned<float>::random({rows, columns}, 1, 3.0);
      Owned<float> amax({1}), scale({1});
      host::amax({x.tensor(), amax.tensor()});
      Codes out({rows, columns}, dtype), transposed({columns, rows}, dtype);
      const Quantize both{x.tensor(), amax.tensor(), scale.tensor(), out.tensor(),
                          transposed.tensor()};
      host::quantize(both);
      const float factor = fp8_factor(static_cast<float>(amax[0]), fp8_max(dtype));
      EXPECT_EQ(scale[0], 1.0f / factor);
      double largest = 0.0;
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t column = 0; column < columns; ++column) {
          const std::int64_t i = row * columns + column;
          const float scaled = static_cast<float>(x[i]) * factor;
          ASSERT_EQ(out.bytes[i], dtype == DType::float8_e4m3 ? to_e4m3(scaled) : to_e5m2(scaled));
          ASSERT_EQ(transposed.bytes[column * rows + row], out.bytes[i]);
          largest = std::max(largest, std::abs(out.value(i)));
        }
      EXPECT_EQ(largest, fp8_max(dtype));
      // Each alone is the same.
      Codes alone({rows, columns}, dtype), alone_transposed({columns, rows}, dtype);
      host::quantize({x.tensor(), amax.tensor(), scale.tensor(), alone.tensor(), {}});
      host::quantize({x.tensor(), amax.tensor(), scale.tensor(), {}, alone_transposed.tensor()});
      EXPECT_EQ(alone.bytes, out.bytes);
      EXPECT_EQ(alone_transposed.bytes, transposed.bytes);
    }
}

TEST(Quantize, OfTheGeluIsThatOfItsOutput) {
  Owned<float> x = Owned<float>::random({48, 80}, 1, 2.0), activated({48, 80});
  host::gelu_forward({.x = x.tensor(), .out = activated.tensor()});
  Owned<float> amax({1}), scale({1}), expected_amax({1}), expected_scale({1});
  Codes out({48, 80}, DType::float8_e4m3), expected({48, 80}, DType::float8_e4m3);
  host::amax({.x = x.tensor(), .amax = amax.tensor(), .gelu = true});
  host::amax({activated.tensor(), expected_amax.tensor()});
  EXPECT_EQ(amax[0], expected_amax[0]);
  host::quantize({.x = x.tensor(),
                  .amax = amax.tensor(),
                  .scale = scale.tensor(),
                  .out = out.tensor(),
                  .gelu = true});
  host::quantize(
      {activated.tensor(), expected_amax.tensor(), expected_scale.tensor(), expected.tensor(), {}});
  EXPECT_EQ(scale[0], expected_scale[0]);
  EXPECT_EQ(out.bytes, expected.bytes);
}

TEST(Quantize, OfZerosIsZero) {
  Owned<float> x({4, 4}, 0.0), amax({1}, 0.0), scale({1});
  Codes out({4, 4}, DType::float8_e4m3);
  host::quantize({x.tensor(), amax.tensor(), scale.tensor(), out.tensor(), {}});
  EXPECT_EQ(scale[0], 1.0);
  EXPECT_EQ(out.bytes, std::vector<std::uint8_t>(16, 0));
}

// An overflow stays visible: the codes are NaN, and so is what a GEMM makes of them.
TEST(Quantize, OfInfinityIsNaN) {
  Owned<float> x({1, 2}, 1.0), amax({1}), scale({1});
  x[1] = std::numeric_limits<float>::infinity();
  host::amax({x.tensor(), amax.tensor()});
  Codes out({1, 2}, DType::float8_e5m2);
  host::quantize({x.tensor(), amax.tensor(), scale.tensor(), out.tensor(), {}});
  EXPECT_TRUE(std::isnan(out.value(1)));
}

TEST(Quantize, ThreadsChangeNothing) {
  expect_threads_change_nothing<float>("values", [] {
    Owned<float> x = Owned<float>::random({300, 500}, 3), amax({1}), scale({1});
    host::amax({x.tensor(), amax.tensor()});
    Codes out({300, 500}, DType::float8_e4m3);
    host::quantize({x.tensor(), amax.tensor(), scale.tensor(), out.tensor(), {}});
    Owned<float> values({300, 500});
    for (std::int64_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(out.value(i) * scale[0]);
    return values;
  });
}

TEST(Quantize, RefusesWhatItCannotRound) {
  Owned<float> x({4, 4}, 1.0), amax({1}, 1.0), scale({1});
  Codes out({4, 4}, DType::float8_e4m3), other({4, 3}, DType::float8_e4m3);
  EXPECT_THROW(host::quantize({x.tensor(), amax.tensor(), scale.tensor(), {}, {}}), InternalError);
  EXPECT_THROW(host::quantize({x.tensor(), amax.tensor(), scale.tensor(), other.tensor(), {}}),
               InternalError);
  EXPECT_THROW(host::quantize({out.tensor(), amax.tensor(), scale.tensor(), out.tensor(), {}}),
               InternalError);
}

/// Random codes without NaN and infinity.
Codes random_codes(Shape shape, DType dtype, std::uint64_t seed, float scale) {
  Codes codes(shape, dtype, scale);
  const int largest = dtype == DType::float8_e4m3 ? 0x7E : 0x7B;
  for (std::size_t i = 0; i < codes.bytes.size(); ++i) {
    const auto code = static_cast<int>(philox_uniform(seed, 0, i) * 2 * (largest + 1));
    codes.bytes[i] = static_cast<std::uint8_t>(code <= largest ? code : 0x80 + code - largest - 1);
  }
  return codes;
}

TEST(Fp8Gemm, IsTheScaledSumOfTheCodesValues) {
  for (const auto& [a_type, b_type] : {std::pair{DType::float8_e4m3, DType::float8_e4m3},
                                       {DType::float8_e5m2, DType::float8_e4m3}})
    for (const double beta : {0.0, 1.0}) {
      constexpr std::int64_t m = 48, n = 32, k = 80;
      Codes a = random_codes({m, k}, a_type, 1, 0.5f), b = random_codes({n, k}, b_type, 2, 0.25f);
      Owned<float> c = beta == 0.0 ? Owned<float>({m, n}) : Owned<float>::random({m, n}, 3);
      Owned<float> bias = Owned<float>::random({n}, 4);
      std::vector<double> expected(m * n);
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0.0;
          for (std::int64_t l = 0; l < k; ++l) sum += a.value(i * k + l) * b.value(j * k + l);
          expected[i * n + j] = 0.125 * sum + (beta == 0.0 ? bias[j] : c[i * n + j]);
        }
      host::gemm({.a = a.tensor(),
                  .b = b.tensor(),
                  .c = c.tensor(),
                  .transpose_b = true,
                  .beta = beta,
                  .bias = beta == 0.0 ? bias.tensor() : Tensor{}});
      expect_close("c", c, expected, 2e-6);
    }
}

TEST(Fp8Gemm, RefusesWhatGpusCannotMultiply) {
  Codes a({16, 16}, DType::float8_e4m3), b({16, 16}, DType::float8_e4m3);
  Codes a5({16, 16}, DType::float8_e5m2), b5({16, 16}, DType::float8_e5m2);
  Codes odd({16, 24}, DType::float8_e4m3);
  Owned<float> c({16, 16});
  const auto refused = [&](const Tensor& x, const Tensor& y, bool transpose_b) {
    EXPECT_THROW(host::gemm({.a = x, .b = y, .c = c.tensor(), .transpose_b = transpose_b}),
                 InternalError);
  };
  refused(a.tensor(), b.tensor(), /*transpose_b=*/false);
  refused(a5.tensor(), b5.tensor(), true);
  refused(odd.tensor(), odd.tensor(), true);
  Tensor unscaled = a.tensor();
  unscaled.scale = nullptr;
  refused(unscaled, b.tensor(), true);
}

}  // namespace
}  // namespace trireme::kernels
