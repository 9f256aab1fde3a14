#include "kernels/linear.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kTokens = 5, kIn = 7, kOut = 12;

template <typename T>
class LinearWeightGradientTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearWeightGradientTest, StorageTypes);

TYPED_TEST(LinearWeightGradientTest, AddsWhatTheDefinitionSays) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({kTokens, kIn}, 1), dy = Owned<T>::random({kTokens, kOut}, 2);
  Owned<T> dweight = Owned<T>::random({kOut, kIn}, 3), dbias = Owned<T>::random({kOut}, 4);
  std::vector<double> weight_sums, bias_sums;
  for (std::int64_t i = 0; i < kOut; ++i) {
    double bias_sum = dbias[i];
    for (std::int64_t t = 0; t < kTokens; ++t) bias_sum += dy[t * kOut + i];
    bias_sums.push_back(bias_sum);
    for (std::int64_t l = 0; l < kIn; ++l) {
      double sum = dweight[i * kIn + l];
      for (std::int64_t t = 0; t < kTokens; ++t) sum += dy[t * kOut + i] * x[t * kIn + l];
      weight_sums.push_back(sum);
    }
  }
  host::linear_weight_gradient({x.tensor(), dy.tensor(), dweight.tensor(), dbias.tensor()});
  expect_close("dweight", dweight, weight_sums, tolerance<T>(1e-6));
  expect_close("dbias", dbias, bias_sums, tolerance<T>(1e-6));
}

TEST(LinearWeightGradient, MatchesFiniteDifferences) {
  Owned<double> x = Owned<double>::random({kTokens, kIn}, 1);
  Owned<double> dy = Owned<double>::random({kTokens, kOut}, 2);
  Owned<double> weight = Owned<double>::random({kOut, kIn}, 3);
  Owned<double> bias = Owned<double>::random({kOut}, 4);
  Owned<double> dweight({kOut, kIn}, 0.0), dbias({kOut}, 0.0);
  host::linear_weight_gradient({x.tensor(), dy.tensor(), dweight.tensor(), dbias.tensor()});
  const auto loss = [&] {
    Owned<double> y({kTokens, kOut});
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
