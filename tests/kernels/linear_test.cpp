#include "kernels/linear.hpp"
#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class GemmTest : public ::testing::Test {};
TYPED_TEST_SUITE(GemmTest, StorageTypes);

struct GemmSize {
  std::int64_t m, n, k;
};

Shape stored(bool transposed, std::int64_t rows, std::int64_t columns) {
  return transposed ? Shape{columns, rows} : Shape{rows, columns};
}

template <typename T>
std::vector<double> reference(const Owned<T>& a, const Owned<T>& b, const Owned<T>& c,
                              const GemmSize& size, bool ta, bool tb, double beta) {
  std::vector<double> result(size.m * size.n);
  for (std::int64_t i = 0; i < size.m; ++i)
    for (std::int64_t j = 0; j < size.n; ++j) {
      double sum = beta == 0.0 ? 0.0 : beta * c[i * size.n + j];
      for (std::int64_t l = 0; l < size.k; ++l)
        sum += a[ta ? l * size.m + i : i * size.k + l] * b[tb ? j * size.k + l : l * size.n + j];
      result[i * size.n + j] = sum;
    }
  return result;
}

TYPED_TEST(GemmTest, MatchesTheDefinition) {
  using T = TypeParam;
  for (const GemmSize size : {GemmSize{1, 1, 1}, GemmSize{7, 5, 3}, GemmSize{1, 600, 33},
                              GemmSize{300, 2, 17}, GemmSize{600, 40, 9}, GemmSize{33, 545, 80}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const double beta : {0.0, 1.0}) {
          Owned<T> a = Owned<T>::random(stored(ta, size.m, size.k), 1);
          Owned<T> b = Owned<T>::random(stored(tb, size.k, size.n), 2);
          Owned<T> c =
              beta == 0.0 ? Owned<T>({size.m, size.n}) : Owned<T>::random({size.m, size.n}, 3);
          const std::vector<double> expected = reference(a, b, c, size, ta, tb, beta);
          host::gemm({a.tensor(), b.tensor(), c.tensor(), ta, tb, beta});
          expect_close("c", c, expected, tolerance<T>(2e-6));
        }
}

TYPED_TEST(GemmTest, ThreadsChangeNothing) {
  using T = TypeParam;
  for (const GemmSize size : {GemmSize{1030, 70, 33}, GemmSize{70, 1030, 65},
                              GemmSize{515, 513, 300}, GemmSize{1, 1030, 40}})
    for (const bool ta : {false, true})
      expect_threads_change_nothing<T>("c", [&] {
        Owned<T> a = Owned<T>::random(stored(ta, size.m, size.k), 1);
        Owned<T> b = Owned<T>::random({size.n, size.k}, 2);
        Owned<T> c({size.m, size.n});
        host::gemm({a.tensor(), b.tensor(), c.tensor(), ta, true});
        return c;
      });
}

TYPED_TEST(GemmTest, FoldsLeadingAxesIntoRows) {
  using T = TypeParam;
  Owned<T> a = Owned<T>::random({3, 2, 4}, 1), b = Owned<T>::random({5, 4}, 2);
  Owned<T> folded({3, 2, 5}), plain({6, 5});
  host::gemm({a.tensor(), b.tensor(), folded.tensor(), false, true});
  host::gemm({a.tensor().view({6, 4}), b.tensor(), plain.tensor(), false, true});
  expect_same_bits("c", folded, plain);
}

TEST(Gemm, RefusesShapesThatDoNotMeet) {
  Owned<float> a({2, 3}, 1.0), b({4, 5}, 1.0), c({2, 5}, 0.0);
  try {
    host::gemm({a.tensor(), b.tensor(), c.tensor()});
    FAIL() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("gemm: b is [4, 5], expected 3 rows of 5"),
              std::string::npos)
        << error.what();
  }
  Owned<double> wide({3, 5}, 1.0);
  EXPECT_THROW(host::gemm({a.tensor(), wide.tensor(), c.tensor()}), InternalError);
}

constexpr std::int64_t kRows = 5, kIn = 7, kOut = 12;

template <typename T>
class LinearGeluTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearGeluTest, StorageTypes);

TYPED_TEST(LinearGeluTest, MatchesTheDefinition) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({kRows, kIn}, 1), weight = Owned<T>::random({kOut, kIn}, 2);
  Owned<T> bias = Owned<T>::random({kOut}, 3), fc1_out({kRows, kOut}), gelu_out({kRows, kOut});
  std::vector<double> before, after;
  for (std::int64_t t = 0; t < kRows; ++t)
    for (std::int64_t i = 0; i < kOut; ++i) {
      double sum = bias[i];
      for (std::int64_t l = 0; l < kIn; ++l) sum += x[t * kIn + l] * weight[i * kIn + l];
      before.push_back(sum);
      after.push_back(gelu_in_double(sum));
    }
  host::linear_gelu(
      {x.tensor(), weight.tensor(), bias.tensor(), fc1_out.tensor(), gelu_out.tensor()});
  expect_close("fc1_out", fc1_out, before, tolerance<T>(1e-6));
  expect_close("gelu_out", gelu_out, after, tolerance<T>(1e-6));
}

TEST(LinearGeluGradient, MatchesFiniteDifferences) {
  Owned<double> fc1_out = Owned<double>::random({kRows, kOut}, 1);
  Owned<double> weight = Owned<double>::random({kIn, kOut}, 2);
  Owned<double> dy = Owned<double>::random({kRows, kIn}, 3);
  Owned<double> dfc1_out({kRows, kOut}), dbias({kOut}, 0.5);
  host::linear_gelu_gradient(
      {dy.tensor(), weight.tensor(), fc1_out.tensor(), dfc1_out.tensor(), dbias.tensor()});
  expect_gradient("dfc1_out", fc1_out, dfc1_out, [&] {
    Owned<double> gelu_out({kRows, kOut}), y({kRows, kIn});
    host::gelu_forward({fc1_out.tensor(), gelu_out.tensor()});
    host::gemm(
        {.a = gelu_out.tensor(), .b = weight.tensor(), .c = y.tensor(), .transpose_b = true});
    return dot(y, dy);
  });
  std::vector<double> sums(kOut, 0.5);
  for (std::int64_t i = 0; i < dfc1_out.size(); ++i) sums[i % kOut] += dfc1_out[i];
  expect_close("dbias", dbias, sums, 1e-14);
}

template <typename T>
class LinearGatedTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearGatedTest, StorageTypes);

TYPED_TEST(LinearGatedTest, IsAGemmAndItsGate) {
  using T = TypeParam;
  for (const Activation function : {Activation::silu, Activation::gelu_tanh}) {
    Owned<T> x = Owned<T>::random({kRows, kIn}, 1), weight = Owned<T>::random({2 * kOut, kIn}, 2);
    Owned<T> fc1_out({kRows, 2 * kOut}), gated_out({kRows, kOut});
    host::linear_gated(
        {x.tensor(), weight.tensor(), fc1_out.tensor(), gated_out.tensor(), function});
    Owned<T> sums({kRows, 2 * kOut}), activated({kRows, kOut});
    host::gemm({.a = x.tensor(), .b = weight.tensor(), .c = sums.tensor(), .transpose_b = true});
    host::gated_forward({sums.tensor(), activated.tensor(), function});
    expect_same_bits("fc1_out", fc1_out, sums);
    expect_same_bits("gated_out", gated_out, activated);
  }
}

TEST(LinearGated, RefusesShapesThatDoNotMeet) {
  Owned<float> x({2, 4}, 1.0), weight({6, 4}, 1.0), fc1_out({2, 6}, 0.0), gated_out({2, 4}, 0.0);
  EXPECT_THROW(
      host::linear_gated({x.tensor(), weight.tensor(), fc1_out.tensor(), gated_out.tensor()}),
      InternalError);
}

TEST(LinearGatedGradient, MatchesFiniteDifferences) {
  for (const Activation function : {Activation::silu, Activation::gelu_tanh}) {
    Owned<double> fc1_out = Owned<double>::random({kRows, 2 * kOut}, 1);
    Owned<double> weight = Owned<double>::random({kIn, kOut}, 2);
    Owned<double> dy = Owned<double>::random({kRows, kIn}, 3);
    Owned<double> dout({kRows, kOut}), dfc1_out({kRows, 2 * kOut});
    host::linear_gated_gradient({dy.tensor(), weight.tensor(), fc1_out.tensor(), dout.tensor(),
                                 dfc1_out.tensor(), function});
    expect_gradient("dfc1_out", fc1_out, dfc1_out, [&] {
      Owned<double> activated({kRows, kOut}), y({kRows, kIn});
      host::gated_forward({fc1_out.tensor(), activated.tensor(), function});
      host::gemm(
          {.a = activated.tensor(), .b = weight.tensor(), .c = y.tensor(), .transpose_b = true});
      return dot(y, dy);
    });
  }
}

TEST(LinearGelu, RefusesToOverwriteWhatItKeeps) {
  Owned<float> x({2, 4}, 1.0), weight({4, 4}, 1.0), bias({4}, 0.0), fc1_out({2, 4}, 0.0);
  EXPECT_THROW(host::linear_gelu({x.tensor(), weight.tensor(), bias.tensor(), fc1_out.tensor(),
                                  fc1_out.tensor()}),
               InternalError);
  EXPECT_THROW(host::linear_gelu_gradient({x.tensor(), weight.tensor(), fc1_out.tensor(),
                                           fc1_out.tensor(), bias.tensor()}),
               InternalError);
}

template <typename T>
class LinearWeightGradientTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearWeightGradientTest, StorageTypes);

TYPED_TEST(LinearWeightGradientTest, AddsWhatTheDefinitionSays) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({kRows, kIn}, 1), dy = Owned<T>::random({kRows, kOut}, 2);
  Owned<T> dweight = Owned<T>::random({kOut, kIn}, 3), dbias = Owned<T>::random({kOut}, 4);
  std::vector<double> weight_sums, bias_sums;
  for (std::int64_t i = 0; i < kOut; ++i) {
    double bias_sum = dbias[i];
    for (std::int64_t t = 0; t < kRows; ++t) bias_sum += dy[t * kOut + i];
    bias_sums.push_back(bias_sum);
    for (std::int64_t l = 0; l < kIn; ++l) {
      double sum = dweight[i * kIn + l];
      for (std::int64_t t = 0; t < kRows; ++t) sum += dy[t * kOut + i] * x[t * kIn + l];
      weight_sums.push_back(sum);
    }
  }
  host::linear_weight_gradient({x.tensor(), dy.tensor(), dweight.tensor(), dbias.tensor()});
  expect_close("dweight", dweight, weight_sums, tolerance<T>(1e-6));
  expect_close("dbias", dbias, bias_sums, tolerance<T>(1e-6));
}

TEST(LinearWeightGradient, MatchesFiniteDifferences) {
  Owned<double> x = Owned<double>::random({kRows, kIn}, 1);
  Owned<double> dy = Owned<double>::random({kRows, kOut}, 2);
  Owned<double> weight = Owned<double>::random({kOut, kIn}, 3);
  Owned<double> bias = Owned<double>::random({kOut}, 4);
  Owned<double> dweight({kOut, kIn}, 0.0), dbias({kOut}, 0.0);
  host::linear_weight_gradient({x.tensor(), dy.tensor(), dweight.tensor(), dbias.tensor()});
  const auto loss = [&] {
    Owned<double> y({kRows, kOut});
    host::gemm({.a = x.tensor(),
                .b = weight.tensor(),
                .c = y.tensor(),
                .transpose_b = true,
                .bias = bias.tensor()});
    return dot(y, dy);
  };
  expect_gradient("dweight", weight, dweight, loss);
  expect_gradient("dbias", bias, dbias, loss);
}

TEST(LinearWeightGradient, RefusesShapesThatDoNotMeet) {
  Owned<float> x({2, 4}, 1.0), dy({3, 4}, 1.0), dweight({4, 4}, 0.0), dbias({4}, 0.0);
  EXPECT_THROW(
      host::linear_weight_gradient({x.tensor(), dy.tensor(), dweight.tensor(), dbias.tensor()}),
      InternalError);
}

}  // namespace

}  // namespace trireme::kernels
