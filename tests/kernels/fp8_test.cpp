#include "kernels/linear.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

/// FP8 codes with a scale, or with one for each block, -1 before they are found.
struct Codes {
  Codes(Shape shape_in, DType dtype_in, float scale = 1.0f)
      : shape(shape_in), dtype(dtype_in), scales({scale}), bytes(shape.size(), 0xFF) {}
  Codes(Shape shape_in, DType dtype_in, ScaleBlocks blocks) : Codes(shape_in, dtype_in) {
    layout = scale_layout(blocks, shape[0], shape[1]);
    scales.assign(layout.count, -1.0f);
  }

  Tensor tensor() { return {bytes.data(), dtype, shape, scales.data()}; }
  Tensor scale_tensor() { return {scales.data(), DType::f32, {layout.count}}; }
  double value(std::int64_t i) const {
    return dtype == DType::float8_e4m3 ? from_e4m3(bytes[i]) : from_e5m2(bytes[i]);
  }
  double scaled(std::int64_t row, std::int64_t i) const {
    return value(row * shape[1] + i) * scales[layout.index(row, i)];
  }

  Shape shape;
  DType dtype;
  ScaleLayout layout;
  std::vector<float> scales;
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

// ---- a scale for each block

/// What quantize_blocks makes of x in both layouts.
struct Quantized {
  Quantized(Owned<float>& x, Shape shape, DType dtype, ScaleBlocks blocks, bool gelu = false)
      : rows(shape, dtype, blocks), transposed({shape[1], shape[0]}, dtype, blocks) {
    host::quantize_blocks({.x = x.tensor(),
                           .out = rows.tensor(),
                           .out_scales = rows.scale_tensor(),
                           .transposed = transposed.tensor(),
                           .transposed_scales = transposed.scale_tensor(),
                           .squares = blocks == ScaleBlocks::squares,
                           .gelu = gelu});
  }
  Codes rows, transposed;
};

/// Checks each code and scale of `codes`, which has element(row, i) there, against its definition.
template <typename Element>
void expect_rounded(const Codes& codes, const Element& element) {
  const std::int64_t rows = codes.shape[0], k = codes.shape[1];
  const std::int64_t height = codes.layout.block_rows;
  for (std::int64_t top = 0; top < rows; top += height)
    for (std::int64_t left = 0; left < k; left += kScaleBlock) {
      const std::int64_t bottom = std::min(rows, top + height);
      const std::int64_t right = std::min(k, left + kScaleBlock);
      float amax = 0.0f;
      for (std::int64_t row = top; row < bottom; ++row)
        for (std::int64_t i = left; i < right; ++i)
          amax = std::max(amax, std::abs(element(row, i)));
      const float factor = fp8_factor(amax, fp8_max(codes.dtype));
      ASSERT_EQ(codes.scales[codes.layout.index(top, left)], 1.0f / factor) << top << ", " << left;
      for (std::int64_t row = top; row < bottom; ++row)
        for (std::int64_t i = left; i < right; ++i) {
          const float scaled = element(row, i) * factor;
          ASSERT_EQ(codes.bytes[row * k + i],
                    codes.dtype == DType::float8_e4m3 ? to_e4m3(scaled) : to_e5m2(scaled))
              << row << ", " << i;
        }
    }
}

constexpr ScaleBlocks kScaleKinds[] = {ScaleBlocks::vectors, ScaleBlocks::squares};

TEST(ScaleLayout, IsThatOfCublasLt) {
  constexpr ScaleLayout vectors = scale_layout(ScaleBlocks::vectors, 18, 272);
  static_assert(vectors.count == 3 * 20 && vectors.index(17, 255) == 20 + 17);
  constexpr ScaleLayout squares = scale_layout(ScaleBlocks::squares, 272, 640);
  static_assert(squares.count == 3 * 8 && squares.index(256, 639) == 2 * 8 + 4);
  static_assert(scale_layout(ScaleBlocks::tensor, 272, 640).count == 1);
  static_assert(scale_layout(ScaleBlocks::tensor, 272, 640).index(271, 639) == 0);
}

TEST(QuantizeBlocks, RoundsEachBlockByItsLargestInBothLayouts) {
  for (const DType dtype : kTypes)
    for (const ScaleBlocks blocks : kScaleKinds)
      for (const auto& [rows, columns] : {std::pair{16, 16}, {32, 144}, {272, 48}, {144, 272}}) {
        Owned<float> x = Owned<float>::random({rows, columns}, 1, 3.0);
        for (std::int64_t i = 0; i < x.size(); i += 37) x[i] = 100.0 * x[i];
        const auto at = [&, n = columns](std::int64_t row, std::int64_t i) {
          return static_cast<float>(x[row * n + i]);
        };
        Quantized both(x, {rows, columns}, dtype, blocks);
        expect_rounded(both.rows, at);
        expect_rounded(both.transposed,
                       [&](std::int64_t i, std::int64_t row) { return at(row, i); });
        // Each alone is the same.
        Codes alone({rows, columns}, dtype, blocks), other({columns, rows}, dtype, blocks);
        const bool squares = blocks == ScaleBlocks::squares;
        host::quantize_blocks({.x = x.tensor(),
                               .out = alone.tensor(),
                               .out_scales = alone.scale_tensor(),
                               .squares = squares});
        host::quantize_blocks({.x = x.tensor(),
                               .transposed = other.tensor(),
                               .transposed_scales = other.scale_tensor(),
                               .squares = squares});
        EXPECT_EQ(alone.bytes, both.rows.bytes);
        EXPECT_EQ(alone.scales, both.rows.scales);
        EXPECT_EQ(other.bytes, both.transposed.bytes);
        EXPECT_EQ(other.scales, both.transposed.scales);
      }
}

TEST(QuantizeBlocks, OfTheGeluIsThatOfItsOutput) {
  Owned<float> x = Owned<float>::random({48, 144}, 1, 2.0), activated({48, 144});
  host::gelu_forward({.x = x.tensor(), .out = activated.tensor()});
  const Quantized fused(x, {48, 144}, DType::float8_e4m3, ScaleBlocks::vectors, /*gelu=*/true);
  const Quantized apart(activated, {48, 144}, DType::float8_e4m3, ScaleBlocks::vectors);
  EXPECT_EQ(fused.rows.bytes, apart.rows.bytes);
  EXPECT_EQ(fused.transposed.bytes, apart.transposed.bytes);
}

// A block of zeros has the scale 1, an infinity makes NaN of its own blocks alone, and a large
// element takes the digits of its own blocks alone.
TEST(QuantizeBlocks, SpecialElementsStayInTheirBlocks) {
  const std::int64_t n = 3 * kScaleBlock;
  Owned<float> x({16, n}, 1.0);
  for (std::int64_t i = 0; i < kScaleBlock; ++i) x[i] = 0.0;
  x[n + 5] = std::numeric_limits<float>::infinity();
  x[n + 130] = 1e6;
  const Quantized both(x, {16, n}, DType::float8_e4m3, ScaleBlocks::vectors);
  EXPECT_EQ(both.rows.scales[both.rows.layout.index(0, 0)], 1.0f);
  EXPECT_EQ(both.rows.value(0), 0.0);
  EXPECT_TRUE(std::isnan(both.rows.value(n + 5)));
  EXPECT_EQ(both.rows.scaled(1, 131), 0.0);
  EXPECT_NEAR(both.rows.scaled(1, 130), 1e6, 1.0);
  EXPECT_NEAR(both.rows.scaled(1, 256), 1.0, 1e-6);
  EXPECT_NEAR(both.rows.scaled(2, 0), 1.0, 1e-6);
  EXPECT_TRUE(std::isnan(both.transposed.value(5 * 16 + 1)));
  EXPECT_NEAR(both.transposed.scaled(140, 1), 1.0, 1e-6);
}

TEST(QuantizeBlocks, RefusesWhatGpusCannotMultiply) {
  Owned<float> x({16, 24}, 1.0), y({16, 32}, 1.0);
  Codes out({16, 24}, DType::float8_e4m3, ScaleBlocks::vectors);
  Codes other({16, 32}, DType::float8_e4m3, ScaleBlocks::vectors);
  EXPECT_THROW(host::quantize_blocks(
                   {.x = x.tensor(), .out = out.tensor(), .out_scales = out.scale_tensor()}),
               InternalError);
  EXPECT_THROW(host::quantize_blocks({.x = y.tensor(),
                                      .out = other.tensor(),
                                      .out_scales = other.scale_tensor(),
                                      .squares = true}),
               InternalError);
  EXPECT_THROW(host::quantize_blocks({.x = y.tensor()}), InternalError);
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

/// The same with random scales for blocks.
Codes random_blocks(Shape shape, DType dtype, std::uint64_t seed, ScaleBlocks blocks) {
  Codes codes(shape, dtype, blocks);
  codes.bytes = random_codes(shape, dtype, seed, 1.0f).bytes;
  for (std::size_t i = 0; i < codes.scales.size(); ++i)
    codes.scales[i] = static_cast<float>(0.01 + philox_uniform(seed, 1, i));
  return codes;
}

TEST(Fp8Gemm, IsTheSumOfTheValuesTimesTheirBlocksScales) {
  using enum ScaleBlocks;
  for (const auto& [a_type, b_blocks, beta] : {std::tuple{DType::float8_e4m3, squares, 0.0},
                                               {DType::float8_e5m2, squares, 0.0},
                                               {DType::float8_e5m2, vectors, 1.0}}) {
    constexpr std::int64_t m = 48, n = 144, k = 272;
    Codes a = random_blocks({m, k}, a_type, 1, vectors);
    Codes b = random_blocks({n, k}, DType::float8_e4m3, 2, b_blocks);
    Owned<float> c = beta == 0.0 ? Owned<float>({m, n}) : Owned<float>::random({m, n}, 3);
    std::vector<double> expected(m * n);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = beta == 0.0 ? 0.0 : c[i * n + j];
        for (std::int64_t l = 0; l < k; ++l) sum += a.scaled(i, l) * b.scaled(j, l);
        expected[i * n + j] = sum;
      }
    host::gemm({.a = a.tensor(),
                .b = b.tensor(),
                .c = c.tensor(),
                .transpose_b = true,
                .beta = beta,
                .blocks_a = vectors,
                .blocks_b = b_blocks});
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
  using enum ScaleBlocks;
  for (const auto& [blocks_a, blocks_b] :
       {std::pair{squares, squares}, {tensor, vectors}, {squares, tensor}})
    EXPECT_THROW(host::gemm({.a = a.tensor(),
                             .b = b.tensor(),
                             .c = c.tensor(),
                             .transpose_b = true,
                             .blocks_a = blocks_a,
                             .blocks_b = blocks_b}),
                 InternalError);
}

}  // namespace
}  // namespace trireme::kernels
