#include "workbench.hpp"

namespace trireme::kernels {
namespace {

// Tokens as s x b, heads of queries and of keys, their width.
struct RotaryCase {
  std::int64_t s, b, heads, kv_heads, d;

  std::int64_t rows() const { return s * b; }
  std::int64_t qk_heads() const { return heads + kv_heads; }
  Shape qkv() const { return {s, b, (heads + 2 * kv_heads) * d}; }
};
constexpr RotaryCase kCases[] = {{1, 1, 1, 1, 2},    {5, 2, 4, 2, 6},      {70, 3, 12, 2, 128},
                                 {33, 2, 32, 8, 64}, {200, 1, 9, 3, 80},   {19, 2, 4, 4, 256},
                                 {7, 2, 6, 1, 36},   {1500, 2, 8, 2, 128}, {3, 1, 2, 1, 100}};

std::string text_of(const RotaryCase& c) {
  return fmt::format("{} x {} tokens, {} and {} heads of {}", c.s, c.b, c.heads, c.kv_heads, c.d);
}

Tensor table_of(Workbench& bench, const RotaryCase& c, std::int64_t positions) {
  std::vector<double> table(positions * c.d);
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < c.d / 2; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(i) / c.d);
      table[p * c.d + i] = std::cos(angle);
      table[p * c.d + c.d / 2 + i] = std::sin(angle);
    }
  return bench.wide_given({positions, c.d}, rounded(table, DType::f32));
}

TEST(RotaryOnGpu, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const RotaryCase& c : kCases)
      for (const bool inverse : {false, true})
        for (const bool given : {false, true})
          expect_as_on_host(
              "rotation, " + text_of(c), dtype, [&](Workbench& bench) -> std::vector<Output> {
                std::vector<std::int32_t> positions;
                for (std::int64_t t = 0; t < c.rows(); ++t)
                  positions.push_back(static_cast<std::int32_t>(t * 7 % (c.s + 3)));
                const Tensor qkv = bench.random(c.qkv(), 1);
                bench.backend().rotary({.qkv = qkv,
                                        .table = table_of(bench, c, c.s + 3),
                                        .heads = c.heads,
                                        .kv_heads = c.kv_heads,
                                        .first_position = 3,
                                        .positions = given ? bench.integers(positions) : nullptr,
                                        .inverse = inverse});
                return {{"qkv", qkv}};
              });
}

// Norms of each head, or of all heads, of which these are half.
void expect_norms(const RotaryCase& c, DType dtype, bool whole) {
  const std::string title = (whole ? "norms of all heads, " : "norms of heads, ") + text_of(c);
  const std::int64_t q_width = c.heads * c.d, width = whole ? 2 * q_width : 0;
  const Shape kept_shape{c.s, c.b, c.qk_heads() * c.d};
  const Shape q_shape{whole ? q_width : c.d}, k_shape{whole ? c.kv_heads * c.d : c.d};
  const Shape rstd_shape{c.rows(), whole ? 2 : c.qk_heads()}, sums_shape{c.rows(), 2};
  std::vector<double> positive =
      random_values(std::max(rstd_shape.size(), sums_shape.size()), 5, DType::f32);
  for (double& value : positive) value = rounded({0.5 + std::abs(value)}, DType::f32)[0];
  const auto positives = [&](const Shape& shape, double factor) {
    std::vector<double> values(positive.begin(), positive.begin() + shape.size());
    for (double& value : values) value *= factor;
    return rounded(values, DType::f32);
  };
  expect_as_on_host(title, dtype, [&](Workbench& bench) -> std::vector<Output> {
    const QkNormForward args{
        .qkv = bench.random(c.qkv(), 1),
        .kept = bench.poisoned(kept_shape),
        .q_weight = bench.random(q_shape, 2),
        .k_weight = bench.random(k_shape, 3),
        .rstd = bench.wide_poisoned(rstd_shape),
        .sums =
            whole ? bench.wide_given(sums_shape, positives(sums_shape, 2.0 * q_width)) : Tensor(),
        .heads = c.heads,
        .kv_heads = c.kv_heads,
        .width = width};
    bench.backend().qk_norm_forward(args);
    return {{"qkv", args.qkv}, {"kept", args.kept}, {"rstd", args.rstd}};
  });
  expect_as_on_host(
      title + ", gradient", dtype,
      [&](Workbench& bench) -> std::vector<Output> {
        const QkNormBackward args{.dqkv = bench.random(c.qkv(), 1),
                                  .kept = bench.random(kept_shape, 4),
                                  .q_weight = bench.random(q_shape, 2),
                                  .k_weight = bench.random(k_shape, 3),
                                  .rstd = bench.wide_given(rstd_shape, positives(rstd_shape, 1.0)),
                                  .sums = whole ? bench.wide_random(sums_shape, 6, 10.0) : Tensor(),
                                  .dq_weight = bench.wide_random(q_shape, 7),
                                  .dk_weight = bench.wide_random(k_shape, 8),
                                  .heads = c.heads,
                                  .kv_heads = c.kv_heads,
                                  .width = width};
        bench.backend().qk_norm_backward(args);
        return {{"dqkv", args.dqkv}, {"dq_weight", args.dq_weight}, {"dk_weight", args.dk_weight}};
      },
      5e-6);
}

TEST(QkNormOnGpu, OfEachHeadAgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const RotaryCase& c : kCases) expect_norms(c, dtype, false);
}

TEST(QkNormOnGpu, OfAllHeadsAgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const RotaryCase& c : kCases) expect_norms(c, dtype, true);
}

TEST(QkNormOnGpu, SumsAgreeWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const RotaryCase& c : kCases)
      for (const bool gradient : {false, true})
        expect_as_on_host(
            "sums, " + text_of(c), dtype,
            [&](Workbench& bench) -> std::vector<Output> {
              const Shape kept{c.s, c.b, c.qk_heads() * c.d}, sums{c.rows(), 2};
              const QkNormSums args{
                  .qkv = bench.random(c.qkv(), 1),
                  .sums = bench.wide_poisoned(sums),
                  .heads = c.heads,
                  .kv_heads = c.kv_heads,
                  .kept = gradient ? bench.random(kept, 2) : Tensor(),
                  .q_weight = gradient ? bench.random({c.heads * c.d}, 3) : Tensor(),
                  .k_weight = gradient ? bench.random({c.kv_heads * c.d}, 4) : Tensor(),
                  .rstd = gradient ? bench.wide_random(sums, 5) : Tensor()};
              bench.backend().qk_norm_sums(args);
              return {{"sums", args.sums}};
            },
            1e-5);
}

}  // namespace
}  // namespace trireme::kernels
