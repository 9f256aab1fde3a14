#include "kernels/bias_gelu.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

double gelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

template <typename T>
class BiasGeluTest : public ::testing::Test {};
TYPED_TEST_SUITE(BiasGeluTest, StorageTypes);

TYPED_TEST(BiasGeluTest, ForwardKeepsThePreactivation) {
  using T = TypeParam;
  for (const auto& [rows, n] : {std::pair{1, 1}, {3, 7}, {33, 130}}) {
    Owned<T> x = Owned<T>::random({rows, n}, 1, 2.0), bias = Owned<T>::random({n}, 2);
    Owned<T> out({rows, n});
    std::vector<double> sums, expected;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      sums.push_back(static_cast<T>(x[i] + bias[i % n]));
      expected.push_back(gelu(sums.back()));
    }
    host::bias_gelu_forward({x.tensor(), bias.tensor(), out.tensor()});
    expect_close("x", x, sums, 0.0);
    expect_close("out", out, expected, tolerance<T>(3e-7));
  }
}

TYPED_TEST(BiasGeluTest, AddBiasAndItsGradient) {
  using T = TypeParam;
  for (const auto& [rows, n] : {std::pair{1, 1}, {130, 7}, {33, 130}}) {
    Owned<T> x = Owned<T>::random({rows, n}, 1), bias = Owned<T>::random({n}, 2);
    Owned<T> dbias = Owned<T>::random({n}, 3);
    std::vector<double> sums, gradient;
    for (std::int64_t i = 0; i < n; ++i) gradient.push_back(dbias[i]);
    for (std::int64_t i = 0; i < x.size(); ++i) {
      gradient[i % n] += x[i];
      sums.push_back(static_cast<T>(x[i] + bias[i % n]));
    }
    host::bias_gradient({x.tensor(), dbias.tensor()});
    host::add_bias({x.tensor(), bias.tensor()});
    expect_close("dbias", dbias, gradient, tolerance<T>(1e-7));
    expect_close("x", x, sums, 0.0);
  }
}

TYPED_TEST(BiasGeluTest, ThreadsChangeNothing) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({37, 1001}, 1), dout = Owned<T>::random({37, 1001}, 2);
  expect_threads_change_nothing<T>("dx", [&] {
    Owned<T> dx({37, 1001});
    host::gelu_backward({dout.tensor(), x.tensor(), dx.tensor()});
    return dx;
  });
  expect_threads_change_nothing<T>("out", [&] {
    Owned<T> sums = x, bias({1001}, 0.25), out({37, 1001});
    host::bias_gelu_forward({sums.tensor(), bias.tensor(), out.tensor()});
    return out;
  });
  expect_threads_change_nothing<T>("dbias", [&] {
    Owned<T> dbias({1001}, 0.0);
    host::bias_gradient({dout.tensor(), dbias.tensor()});
    return dbias;
  });
}

TEST(GeluBackward, MatchesFiniteDifferencesAlsoInPlace) {
  Owned<double> x = Owned<double>::random({3, 17}, 1, 2.0);
  Owned<double> dout = Owned<double>::random({3, 17}, 2), dx({3, 17});
  host::gelu_backward({dout.tensor(), x.tensor(), dx.tensor()});
  expect_gradient("dx", x, dx, [&] {
    Owned<double> kept = x, zero({17}, 0.0), out({3, 17});
    host::bias_gelu_forward({kept.tensor(), zero.tensor(), out.tensor()});
    return dot(out, dout);
  });
  host::gelu_backward({dout.tensor(), x.tensor(), dout.tensor()});
  expect_same_bits("dx in place", dout, dx);
}

TYPED_TEST(BiasGeluTest, StaysFiniteFarFromZero) {
  using T = TypeParam;
  const std::vector<double> at = {-1e4, -50, -12, 12, 50, 1e4};
  Owned<T> x({6}), zero({6}, 0.0), out({6}), ones({6}, 1.0), dx({6});
  for (int i = 0; i < 6; ++i) x[i] = static_cast<T>(at[i]);
  host::bias_gelu_forward({x.tensor(), zero.tensor(), out.tensor()});
  host::gelu_backward({ones.tensor(), x.tensor(), dx.tensor()});
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(out[i], at[i] > 0 ? at[i] : 0.0, 1e-20) << at[i];
    EXPECT_NEAR(dx[i], at[i] > 0 ? 1.0 : 0.0, 1e-20) << at[i];
  }
}

TEST(BiasGelu, RefusesToOverwriteWhatItKeeps) {
  Owned<float> x({2, 4}, 1.0), bias({4}, 0.0);
  EXPECT_THROW(host::bias_gelu_forward({x.tensor(), bias.tensor(), x.tensor()}), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
