#include "kernels/linear.hpp"

#include "kernel_testing.hpp"
#include "kernels/gelu.hpp"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kTokens = 5, kIn = 7, kOut = 12;

double gelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

template <typename T>
class LinearGeluTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearGeluTest, StorageTypes);

TYPED_TEST(LinearGeluTest, MatchesTheDefinition) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({kTokens, kIn}, 1), weight = Owned<T>::random({kOut, kIn}, 2);
  Owned<T> bias = Owned<T>::random({kOut}, 3), up({kTokens, kOut}), activated({kTokens, kOut});
  std::vector<double> before, after;
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t i = 0; i < kOut; ++i) {
      double sum = bias[i];
      for (std::int64_t l = 0; l < kIn; ++l) sum += x[t * kIn + l] * weight[i * kIn + l];
      before.push_back(sum);
      after.push_back(gelu(sum));
    }
  host::linear_gelu({x.tensor(), weight.tensor(), bias.tensor(), up.tensor(), activated.tensor()});
  expect_close("up", up, before, tolerance<T>(1e-6));
  expect_close("activated", activated, after, tolerance<T>(1e-6));
}

TEST(LinearGeluGradient, MatchesFiniteDifferences) {
  Owned<double> up = Owned<double>::random({kTokens, kOut}, 1);
  Owned<double> weight = Owned<double>::random({kIn, kOut}, 2);
  Owned<double> dy = Owned<double>::random({kTokens, kIn}, 3);
  Owned<double> dup({kTokens, kOut}), dbias({kOut}, 0.5);
  host::linear_gelu_gradient(
      {dy.tensor(), weight.tensor(), up.tensor(), dup.tensor(), dbias.tensor()});
  expect_gradient("dup", up, dup, [&] {
    Owned<double> activated({kTokens, kOut}), y({kTokens, kIn});
    host::gelu_forward({up.tensor(), activated.tensor()});
    host::gemm(
        {.a = activated.tensor(), .b = weight.tensor(), .c = y.tensor(), .transpose_b = true});
    return dot(y, dy);
  });
  std::vector<double> sums(kOut, 0.5);
  for (std::int64_t i = 0; i < dup.size(); ++i) sums[i % kOut] += dup[i];
  expect_close("dbias", dbias, sums, 1e-14);
}

TEST(LinearGelu, RefusesToOverwriteWhatItKeeps) {
  Owned<float> x({2, 4}, 1.0), weight({4, 4}, 1.0), bias({4}, 0.0), up({2, 4}, 0.0);
  EXPECT_THROW(
      host::linear_gelu({x.tensor(), weight.tensor(), bias.tensor(), up.tensor(), up.tensor()}),
      InternalError);
  EXPECT_THROW(host::linear_gelu_gradient(
                   {x.tensor(), weight.tensor(), up.tensor(), up.tensor(), bias.tensor()}),
               InternalError);
}

}  // namespace
}  // namespace trireme::kernels
