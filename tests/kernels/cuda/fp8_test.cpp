#include "kernels/linear.hpp"

#include <cuda_fp8.h>

#include <bit>
#include <cstdint>
#include <tuple>

#include "device_testing.hpp"
#include "hopper/primitives.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"

namespace trireme::kernels {
namespace {

constexpr DType kTypes[] = {DType::float8_e4m3, DType::float8_e5m2};

// CUDA's own conversion for the host is that of cvt.rn.satfinite: every upper half of a float, and
// its neighbours.
TEST(Fp8Conversion, IsCudasBitForBit) {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float value = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(to_e4m3(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3)) << value;
      ASSERT_EQ(to_e5m2(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2)) << value;
    }
}

std::vector<std::uint8_t> bytes_of(const Tensor& tensor) {
  std::vector<std::uint8_t> bytes(tensor.size());
  gpu().download(bytes.data(), tensor.data, bytes.size());
  return bytes;
}

/// What the host makes of `values`: the codes in both layouts, and the scale.
struct Reference {
  Reference(const std::vector<double>& values, DType x_type, Shape shape, DType dtype,
            bool gelu = false)
      : rows(shape.size()), transposed(shape.size()) {
    const std::vector<float> floats(values.begin(), values.end());
    std::vector<std::byte> x(values.size() * size_of(x_type));
    convert_from_float(floats.data(), floats.size(), x_type, x.data());
    const Tensor in{x.data(), x_type, shape}, one{&amax, DType::f32, {1}};
    host::amax({in, one, gelu});
    host::quantize({in,
                    one,
                    {&scale, DType::f32, {1}},
                    {rows.data(), dtype, shape},
                    {transposed.data(), dtype, {shape[1], shape[0]}},
                    gelu});
  }
  float amax = 0.0f, scale = 0.0f;
  std::vector<std::uint8_t> rows, transposed;
};

TEST(CudaQuantize, IsTheHostsBitForBit) {
  for (const DType x_type : {DType::bf16, DType::f16, DType::f32})
    for (const DType dtype : kTypes)
      for (const Shape& shape :
           {Shape{1, 1}, Shape{7, 5}, Shape{8, 8}, Shape{16, 16}, Shape{144, 272}, Shape{136, 1000},
            Shape{33, 130}, Shape{512, 384}})
        for (const double deviation : {1.0, 1e-3}) {
          const std::vector<double> values = random_values(shape.size(), 1, x_type, deviation);
          const Reference expected(values, x_type, shape, dtype);
          const OnGpu x(shape, x_type, values), amax({1}, DType::f32), scale({1}, DType::f32);
          const OnGpu out(shape, dtype), transposed({shape[1], shape[0]}, dtype);
          gpu().amax({x.tensor(), amax.tensor()});
          gpu().quantize(
              {x.tensor(), amax.tensor(), scale.tensor(), out.tensor(), transposed.tensor()});
          const std::string name =
              fmt::format("{} of {} to {}", to_string(shape), name_of(x_type), name_of(dtype));
          EXPECT_EQ(amax.read()[0], expected.amax) << name;
          EXPECT_EQ(scale.read()[0], expected.scale) << name;
          EXPECT_EQ(bytes_of(out.tensor()), expected.rows) << name;
          EXPECT_EQ(bytes_of(transposed.tensor()), expected.transposed) << name;
          out.read(), transposed.read();  // the canaries
          const OnGpu alone(shape, dtype), other({shape[1], shape[0]}, dtype);
          gpu().quantize({x.tensor(), amax.tensor(), scale.tensor(), alone.tensor(), {}});
          gpu().quantize({x.tensor(), amax.tensor(), scale.tensor(), {}, other.tensor()});
          EXPECT_EQ(bytes_of(alone.tensor()), expected.rows) << name;
          EXPECT_EQ(bytes_of(other.tensor()), expected.transposed) << name;
        }
}

// GELUs differ by their last bits, so that a few codes are neighbours of the host's.
TEST(CudaQuantize, OfTheGeluIsNearTheHosts) {
  for (const DType x_type : {DType::bf16, DType::f16})
    for (const Shape& shape : {Shape{144, 272}, Shape{33, 130}}) {
      const std::vector<double> values = random_values(shape.size(), 1, x_type, 2.0);
      const Reference expected(values, x_type, shape, DType::float8_e4m3, /*gelu=*/true);
      const OnGpu x(shape, x_type, values), amax({1}, DType::f32), scale({1}, DType::f32);
      const OnGpu out(shape, DType::float8_e4m3);
      const OnGpu transposed({shape[1], shape[0]}, DType::float8_e4m3);
      gpu().amax({.x = x.tensor(), .amax = amax.tensor(), .gelu = true});
      gpu().quantize({.x = x.tensor(),
                      .amax = amax.tensor(),
                      .scale = scale.tensor(),
                      .out = out.tensor(),
                      .transposed = transposed.tensor(),
                      .gelu = true});
      EXPECT_NEAR(amax.read()[0], expected.amax, 1e-5 * expected.amax);
      const std::vector<std::uint8_t> rows = bytes_of(out.tensor());
      const std::vector<std::uint8_t> columns = bytes_of(transposed.tensor());
      std::int64_t different = 0;
      for (std::int64_t i = 0; i < shape.size(); ++i) {
        ASSERT_EQ(rows[i], columns[i % shape[1] * shape[0] + i / shape[1]]) << i;
        ASSERT_LE(std::abs(rows[i] - expected.rows[i]), 1) << i;
        different += rows[i] != expected.rows[i] ? 1 : 0;
      }
      EXPECT_LT(different, shape.size() / 200);
    }
}

TEST(CudaQuantize, OfZerosInfinityAndNaNIsTheHosts) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double special : {0.0, infinity, -infinity, std::nan("")})
    for (const Shape& shape : {Shape{16, 16}, Shape{3, 5}}) {
      std::vector<double> values(shape.size(), special == 0.0 ? 0.0 : 1.0);
      values[7] = special;
      const Reference expected(values, DType::bf16, shape, DType::float8_e4m3);
      const OnGpu x(shape, DType::bf16, values), amax({1}, DType::f32), scale({1}, DType::f32);
      const OnGpu out(shape, DType::float8_e4m3);
      gpu().amax({x.tensor(), amax.tensor()});
      gpu().quantize({x.tensor(), amax.tensor(), scale.tensor(), out.tensor(), {}});
      EXPECT_EQ(bytes_of(out.tensor()), expected.rows) << special;
    }
}

// ---- a scale for each block

/// A result of quantize_blocks on the GPU, with canaries in the padding of its scales.
struct BlockCodes {
  BlockCodes(Shape shape_in, DType dtype, bool squares)
      : shape(shape_in),
        layout(scale_layout(squares ? ScaleBlocks::squares : ScaleBlocks::vectors, shape[0],
                            shape[1])),
        codes(shape, dtype),
        scales({layout.count}, DType::f32, std::vector<double>(layout.count, -1.0)) {}

  Shape shape;
  ScaleLayout layout;
  OnGpu codes, scales;
};

/// What the host makes of it.
struct HostBlocks {
  HostBlocks(const std::vector<double>& values, DType x_type, const BlockCodes& like, bool squares,
             bool transposed, bool gelu)
      : codes(like.shape.size()), scales(like.layout.count, -1.0f) {
    const std::vector<float> floats(values.begin(), values.end());
    std::vector<std::byte> x(values.size() * size_of(x_type));
    convert_from_float(floats.data(), floats.size(), x_type, x.data());
    const Tensor out{codes.data(), like.codes.tensor().dtype, like.shape};
    const Tensor of_out{scales.data(), DType::f32, {like.layout.count}};
    QuantizeBlocks args{.x = {x.data(), x_type, like.shape}, .squares = squares, .gelu = gelu};
    if (transposed) args.x.shape = {like.shape[1], like.shape[0]};
    (transposed ? args.transposed : args.out) = out;
    (transposed ? args.transposed_scales : args.out_scales) = of_out;
    host::quantize_blocks(args);
  }
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

std::vector<float> scales_of(const BlockCodes& blocks) {
  const std::vector<double> scales = blocks.scales.read();
  return {scales.begin(), scales.end()};
}

TEST(CudaQuantizeBlocks, IsTheHostsBitForBit) {
  for (const DType x_type : {DType::bf16, DType::f16, DType::f32})
    for (const DType dtype : kTypes)
      for (const bool squares : {false, true})
        for (const Shape& shape :
             {Shape{16, 16}, Shape{144, 272}, Shape{272, 144}, Shape{512, 384}, Shape{128, 1600}}) {
          std::vector<double> values = random_values(shape.size(), 1, x_type, 1.0);
          for (std::size_t i = 0; i < values.size(); i += 1001) values[i] *= 64.0;
          for (std::int64_t i = 0; i < 16; ++i) values[i] = 0.0;
          const Shape turned{shape[1], shape[0]};
          const OnGpu x(shape, x_type, values);
          const BlockCodes out(shape, dtype, squares), transposed(turned, dtype, squares);
          gpu().quantize_blocks({.x = x.tensor(),
                                 .out = out.codes.tensor(),
                                 .out_scales = out.scales.tensor(),
                                 .transposed = transposed.codes.tensor(),
                                 .transposed_scales = transposed.scales.tensor(),
                                 .squares = squares});
          const std::string name =
              fmt::format("{} of {} to {}{}", to_string(shape), name_of(x_type), name_of(dtype),
                          squares ? ", squares" : "");
          const HostBlocks rows(values, x_type, out, squares, false, false);
          const HostBlocks columns(values, x_type, transposed, squares, true, false);
          EXPECT_EQ(bytes_of(out.codes.tensor()), rows.codes) << name;
          EXPECT_EQ(scales_of(out), rows.scales) << name;
          EXPECT_EQ(bytes_of(transposed.codes.tensor()), columns.codes) << name;
          EXPECT_EQ(scales_of(transposed), columns.scales) << name;
          out.codes.read(), transposed.codes.read();  // the canaries
          const BlockCodes alone(shape, dtype, squares), other(turned, dtype, squares);
          gpu().quantize_blocks({.x = x.tensor(),
                                 .out = alone.codes.tensor(),
                                 .out_scales = alone.scales.tensor(),
                                 .squares = squares});
          gpu().quantize_blocks({.x = x.tensor(),
                                 .transposed = other.codes.tensor(),
                                 .transposed_scales = other.scales.tensor(),
                                 .squares = squares});
          EXPECT_EQ(bytes_of(alone.codes.tensor()), rows.codes) << name;
          EXPECT_EQ(bytes_of(other.codes.tensor()), columns.codes) << name;
        }
}

TEST(CudaQuantizeBlocks, OfInfinityNaNAndTheGeluIsTheHosts) {
  const Shape shape{144, 272};
  for (const double special : {std::numeric_limits<double>::infinity(), std::nan(""), 1e30, 0.0}) {
    const bool gelu = special == 0.0;
    std::vector<double> values = random_values(shape.size(), 1, DType::bf16, 2.0);
    values[300] = special;
    const OnGpu x(shape, DType::bf16, values);
    const BlockCodes out(shape, DType::float8_e4m3, false);
    gpu().quantize_blocks({.x = x.tensor(),
                           .out = out.codes.tensor(),
                           .out_scales = out.scales.tensor(),
                           .gelu = gelu});
    const HostBlocks expected(values, DType::bf16, out, false, false, gelu);
    const std::vector<std::uint8_t> codes = bytes_of(out.codes.tensor());
    if (!gelu) {
      EXPECT_EQ(codes, expected.codes) << special;
      continue;
    }
    // GELUs differ by their last bits.
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < shape.size(); ++i) {
      ASSERT_LE(std::abs(codes[i] - expected.codes[i]), 1) << i;
      different += codes[i] != expected.codes[i] ? 1 : 0;
    }
    EXPECT_LT(different, shape.size() / 200);
  }
}

/// A GEMM of random values in FP8.
struct Case {
  std::int64_t m, n, k;
  DType a_type = DType::float8_e4m3;
  DType result = DType::bf16;
  double beta = 0.0;
  bool bias = false, fast = false;
  ScaleBlocks blocks_a = ScaleBlocks::tensor, blocks_b = ScaleBlocks::tensor;

  std::string name() const {
    return fmt::format("{}x{}x{} {} to {}{}{} blocks {} {}", m, n, k, name_of(a_type),
                       name_of(result), beta != 0.0 ? " add" : "", bias ? " bias" : "",
                       static_cast<int>(blocks_a), static_cast<int>(blocks_b));
  }
};

/// Scales of an operand: one, or different ones for its blocks; those that are padding are NaN.
struct RandomScales {
  RandomScales(ScaleBlocks blocks, std::int64_t rows, std::int64_t k, float scale)
      : layout(scale_layout(blocks, rows, k)), values(layout.count, std::nan("")) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < k; i += kScaleBlock) {
        const std::int64_t at = layout.index(row, i);
        values[at] =
            scale * (layout.count == 1 ? 1.0f : static_cast<float>(at * 7 % 5) * 0.25f + 0.25f);
      }
  }
  double at(std::int64_t row, std::int64_t i) const { return values[layout.index(row, i)]; }

  ScaleLayout layout;
  std::vector<double> values;
};

template <typename Multiply>
void expect_right(const Case& problem, const Multiply& multiply) {
  constexpr float kScaleA = 0.5f, kScaleB = 0.03125f;
  const auto [m, n, k, a_type, result, beta, bias, fast, blocks_a, blocks_b] = problem;
  const RandomScales scales_a(blocks_a, m, k, kScaleA), scales_b(blocks_b, n, k, kScaleB);
  const std::vector<double> a = random_values(m * k, 1, a_type, 30.0);
  const std::vector<double> b = random_values(n * k, 2, DType::float8_e4m3, 30.0);
  const std::vector<double> c = random_values(m * n, 3, result, 10.0);
  const std::vector<double> w = random_values(n, 4, result, 10.0);
  std::vector<double> exact(m * n);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += a[i * k + l] * scales_a.at(i, l) * b[j * k + l] * scales_b.at(j, l);
      exact[i * n + j] = sum + (beta != 0.0 ? c[i * n + j] : bias ? w[j] : 0.0);
    }
  const auto run = [&] {
    const OnGpu x({m, k}, a_type, a), y({n, k}, DType::float8_e4m3, b), v({n}, result, w);
    const OnGpu scale_a({scales_a.layout.count}, DType::f32, scales_a.values);
    const OnGpu scale_b({scales_b.layout.count}, DType::f32, scales_b.values);
    const OnGpu z = beta == 0.0 ? OnGpu({m, n}, result) : OnGpu({m, n}, result, c);
    Gemm args{.a = x.tensor(), .b = y.tensor(), .c = z.tensor(), .transpose_b = true, .beta = beta};
    if (bias) args.bias = v.tensor();
    args.a.scale = scale_a.tensor().as<float>();
    args.b.scale = scale_b.tensor().as<float>();
    args.fast_accumulation = fast;
    args.blocks_a = blocks_a;
    args.blocks_b = blocks_b;
    multiply(args);
    return z.read();
  };
  const std::vector<double> actual = run();
  // Hopper's tensor cores keep about 14 bits of the largest term as they add up.
  expect_as_near(problem.name(), actual, rounded(exact, result), exact, fast ? 2e-3 : 5e-4);
  EXPECT_EQ(run(), actual) << problem.name() << ": other bits the second time";
}

TEST(CudaFp8Gemm, MatchesTheExactSum) {
  for (const DType result : {DType::bf16, DType::f16})
    for (const bool bias : {false, true})
      for (const bool fast : {false, true})
        for (const Case& size : {Case{16, 16, 16}, Case{256, 384, 128}, Case{144, 272, 1040}})
          expect_right({size.m, size.n, size.k, DType::float8_e4m3, result, 0.0, bias, fast},
                       [](const Gemm& args) { gpu().gemm(args); });
}

TEST(CudaFp8Gemm, MultipliesGradients) {
  for (const DType a_type : kTypes)
    for (const Case& size : {Case{16, 32, 48}, Case{272, 144, 2048}}) {
      const auto multiply = [](const Gemm& args) { gpu().gemm(args); };
      expect_right({size.m, size.n, size.k, a_type, DType::bf16}, multiply);
      expect_right({size.m, size.n, size.k, a_type, DType::f32, 1.0}, multiply);
      expect_right({size.m, size.n, size.k, a_type, DType::bf16, 1.0}, multiply);
    }
}

TEST(CudaFp8Gemm, MultipliesBlocks) {
  if (!cuda::is_hopper()) GTEST_SKIP() << "needs compute capability 9.0";
  using enum ScaleBlocks;
  const auto multiply = [](const Gemm& args) { gpu().gemm(args); };
  for (const Case& size :
       {Case{16, 16, 16}, Case{256, 384, 128}, Case{144, 272, 528}, Case{80, 144, 1600}}) {
    const auto [m, n, k] = std::tuple{size.m, size.n, size.k};
    for (const DType result : {DType::bf16, DType::f16})
      for (const bool bias : {false, true})
        expect_right({m, n, k, kTypes[0], result, 0.0, bias, false, vectors, squares}, multiply);
    for (const DType a_type : kTypes) {
      expect_right({m, n, k, a_type, DType::bf16, 0.0, false, false, vectors, squares}, multiply);
      expect_right({m, n, k, a_type, DType::f32, 1.0, false, false, vectors, vectors}, multiply);
    }
  }
}

TEST(CudaFp8Gemm, ThePlainKernelMatchesTheExactSumToo) {
  const cuda::Context context{.stream = gpu().stream(), .sms = 1};
  const auto multiply = [&](const Gemm& args) { cuda::gemm_plain(args, context); };
  using enum ScaleBlocks;
  expect_right({32, 48, 272, DType::float8_e5m2, DType::f32, 1.0, false, false, vectors, vectors},
               multiply);
  expect_right({32, 144, 272, DType::float8_e4m3, DType::bf16, 0.0, true, false, vectors, squares},
               multiply);
  expect_right({32, 48, 80, DType::float8_e5m2, DType::f32, 1.0}, multiply);
  expect_right({32, 48, 80, DType::float8_e4m3, DType::bf16, 0.0, true}, multiply);
}

}  // namespace
}  // namespace trireme::kernels
