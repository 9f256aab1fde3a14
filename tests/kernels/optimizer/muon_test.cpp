#include "../kernel_testing.hpp"
#include "core/tensor.hpp"
#include "kernels/optimizer.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class MuonTest : public ::testing::Test {};
TYPED_TEST_SUITE(MuonTest, StorageTypes);

TYPED_TEST(MuonTest, MomentumFollowsTheFormula) {
  using T = TypeParam;
  for (const bool nesterov : {false, true}) {
    const std::int64_t n = 20001;
    Owned<T> gradient = Owned<T>::random({n}, 1), m = Owned<T>::random({n}, 2), out({n});
    std::vector<double> after(n), expected(n);
    for (std::int64_t i = 0; i < n; ++i) {
      const double g = 0.5 * std::as_const(gradient)[i];
      after[i] = 0.9 * std::as_const(m)[i] + g;
      expected[i] = nesterov ? g + 0.9 * after[i] : after[i];
    }
    Owned<T> alone = m;
    MuonMomentum args{.gradient = gradient.tensor(),
                      .m = m.tensor(),
                      .out = out.tensor(),
                      .momentum = 0.9,
                      .gradient_scale = 0.5,
                      .nesterov = nesterov};
    host::muon_momentum(args);
    expect_close("m", m, after, tolerance<T>(3e-7));
    expect_close("out", out, expected, tolerance<T>(3e-7));
    args.m = alone.tensor();
    args.out = {};
    host::muon_momentum(args);
    expect_same_bits("m without out", m, alone);
  }
}

TYPED_TEST(MuonTest, NormalizesByTheFrobeniusNorm) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({130, 301}, 1, 1e-3), out({130, 301}), zero({7}, 0.0);
  double squares = 0.0;
  for (std::int64_t i = 0; i < x.size(); ++i) squares += std::pow(std::as_const(x)[i], 2);
  std::vector<double> expected(x.size());
  for (std::int64_t i = 0; i < x.size(); ++i)
    expected[i] = std::as_const(x)[i] / (std::sqrt(squares) + 1e-7);
  host::muon_normalize({x.tensor(), out.tensor()});
  expect_close("out", out, expected, tolerance<T>(3e-6));
  host::muon_normalize({zero.tensor(), zero.tensor()});
  expect_close("zeros", zero, std::vector<double>(7, 0.0), 0.0);
  expect_threads_change_nothing<T>("out", [&] {
    host::muon_normalize({x.tensor(), out.tensor()});
    return out;
  });
}

TYPED_TEST(MuonTest, PolynomialAddsToTheDiagonal) {
  using T = TypeParam;
  const std::int64_t r = 19;
  Owned<T> gram = Owned<T>::random({r, r}, 1), squared = Owned<T>::random({r, r}, 2);
  std::vector<double> expected(r * r);
  for (std::int64_t i = 0; i < r * r; ++i)
    expected[i] = (i / r == i % r ? 3.4445 : 0.0) - 4.775 * std::as_const(gram)[i] +
                  2.0315 * std::as_const(squared)[i];
  host::muon_polynomial(
      {gram.tensor(), squared.tensor(), squared.tensor(), 3.4445, -4.775, 2.0315});
  expect_close("out", squared, expected, tolerance<T>(3e-7));
}

TYPED_TEST(MuonTest, CopiesColumnsOfWiderMatrices) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({5, 9}, 1), out({5, 6}, 7.0);
  std::vector<double> expected(30, 7.0);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      expected[i * 6 + 3 + j] = 0.5 * std::as_const(x)[i * 9 + 4 + j];
  Tensor from = x.tensor(), to = out.tensor();
  from = {from.as<T>() + 4, from.dtype, {41}};
  to = {to.as<T>() + 3, to.dtype, {27}};
  host::scaled_copy({from, to, 5, 3, 9, 6, 0.5});
  expect_close("out", out, expected, 0.0);
  EXPECT_THROW(host::scaled_copy({from, to, 6, 3, 9, 6, 0.5}), InternalError);
}

TEST(ScaledCopy, RoundsAndWidens) {
  Owned<float> x = Owned<float>::random({40}, 1), back({40});
  std::vector<std::uint16_t> half(40);
  const Tensor rounded{half.data(), DType::bf16, {40}};
  host::scaled_copy({x.tensor(), rounded, 1, 40, 40, 40, 3.0});
  host::scaled_copy({rounded, back.tensor(), 1, 40, 40, 40, 2.0});
  for (std::int64_t i = 0; i < 40; ++i) {
    float expected = 0.0f;
    const float scaled = 3.0f * x[i];
    std::uint16_t bits = 0;
    convert_from_float(&scaled, 1, DType::bf16, &bits);
    convert_to_float(&bits, 1, DType::bf16, &expected);
    EXPECT_EQ(half[i], bits) << i;
    EXPECT_EQ(back[i], 2.0f * expected) << i;
  }
}

}  // namespace
}  // namespace trireme::kernels
