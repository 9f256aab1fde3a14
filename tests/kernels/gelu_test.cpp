#include "kernels/linear.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class GeluTest : public ::testing::Test {};
TYPED_TEST_SUITE(GeluTest, StorageTypes);

TYPED_TEST(GeluTest, ForwardFollowsTheFormula) {
  using T = TypeParam;
  for (const auto& [rows, n] : {std::pair{1, 1}, {3, 7}, {33, 130}}) {
    Owned<T> x = Owned<T>::random({rows, n}, 1, 2.0), out({rows, n});
    std::vector<double> expected;
    for (std::int64_t i = 0; i < x.size(); ++i) expected.push_back(gelu_in_double(x[i]));
    host::gelu_forward({x.tensor(), out.tensor()});
    expect_close("out", out, expected, tolerance<T>(3e-7));
  }
}

TYPED_TEST(GeluTest, ExactGeluAndTanhFollowTheirFormulas) {
  using T = TypeParam;
  const std::pair<Activation, double (*)(double)> functions[] = {
      {Activation::gelu, [](double y) { return y / 2 * (1 + std::erf(y / std::sqrt(2.0))); }},
      {Activation::tanh, [](double y) { return std::tanh(y); }}};
  for (const auto& [function, formula] : functions) {
    Owned<T> x = Owned<T>::random({33, 130}, 1, 2.0), out({33, 130});
    std::vector<double> expected;
    for (std::int64_t i = 0; i < x.size(); ++i) expected.push_back(formula(x[i]));
    host::gelu_forward({x.tensor(), out.tensor(), function});
    expect_close("out", out, expected, tolerance<T>(3e-7));
  }
}

TEST(GeluBackward, OfExactGeluAndTanhMatchesFiniteDifferences) {
  for (const Activation function : {Activation::gelu, Activation::tanh}) {
    Owned<double> x = Owned<double>::random({3, 17}, 1, 2.0);
    Owned<double> dout = Owned<double>::random({3, 17}, 2), dx({3, 17}), dbias({17}, 0.5);
    host::gelu_backward({dout.tensor(), x.tensor(), dx.tensor(), dbias.tensor(), function});
    expect_gradient("dx", x, dx, [&] {
      Owned<double> out({3, 17});
      host::gelu_forward({x.tensor(), out.tensor(), function});
      return dot(out, dout);
    });
    std::vector<double> sums(17, 0.5);
    for (std::int64_t i = 0; i < dx.size(); ++i) sums[i % 17] += dx[i];
    expect_close("dbias", dbias, sums, 1e-14);
  }
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TYPED_TEST(GeluTest, GatedFormsFollowTheFormula) {
  using T = TypeParam;
  const std::pair<Activation, double (*)(double)> functions[] = {
      {Activation::silu, silu}, {Activation::gelu_tanh, gelu_in_double}};
  for (const auto& [function, formula] : functions)
    for (const auto& [rows, n] : {std::pair{1, 1}, {3, 7}, {33, 130}}) {
      Owned<T> x = Owned<T>::random({rows, 2 * n}, 1, 2.0), out({rows, n});
      std::vector<double> expected;
      for (int t = 0; t < rows; ++t)
        for (int i = 0; i < n; ++i)
          expected.push_back(formula(x[t * 2 * n + i]) * x[t * 2 * n + n + i]);
      host::gated_forward({x.tensor(), out.tensor(), function});
      expect_close("out", out, expected, tolerance<T>(3e-7));
    }
}

TEST(GatedBackward, MatchesFiniteDifferencesAlsoInPlace) {
  for (const Activation function : {Activation::silu, Activation::gelu_tanh, Activation::gelu}) {
    Owned<double> x = Owned<double>::random({3, 10}, 1, 2.0);
    Owned<double> dout = Owned<double>::random({3, 5}, 2), dx({3, 10});
    host::gated_backward({dout.tensor(), x.tensor(), dx.tensor(), function});
    expect_gradient("dx", x, dx, [&] {
      Owned<double> out({3, 5});
      host::gated_forward({x.tensor(), out.tensor(), function});
      return dot(out, dout);
    });
    Owned<double> over = x;
    host::gated_backward({dout.tensor(), over.tensor(), over.tensor(), function});
    expect_same_bits("dx over x", over, dx);
  }
}

TYPED_TEST(GeluTest, BiasGradientAddsColumnSums) {
  using T = TypeParam;
  for (const auto& [rows, n] : {std::pair{1, 1}, {130, 7}, {33, 130}}) {
    Owned<T> x = Owned<T>::random({rows, n}, 1), dbias = Owned<T>::random({n}, 3);
    std::vector<double> gradient;
    for (std::int64_t i = 0; i < n; ++i) gradient.push_back(dbias[i]);
    for (std::int64_t i = 0; i < x.size(); ++i) gradient[i % n] += x[i];
    host::bias_gradient({x.tensor(), dbias.tensor()});
    expect_close("dbias", dbias, gradient, tolerance<T>(1e-7));
  }
}

TYPED_TEST(GeluTest, ThreadsChangeNothing) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({37, 1001}, 1), dout = Owned<T>::random({37, 1001}, 2);
  expect_threads_change_nothing<T>("dx", [&] {
    Owned<T> dx({37, 1001}), dbias({1001}, 0.0);
    host::gelu_backward({dout.tensor(), x.tensor(), dx.tensor(), dbias.tensor()});
    return dx;
  });
  expect_threads_change_nothing<T>("out", [&] {
    Owned<T> out({37, 1001});
    host::gelu_forward({x.tensor(), out.tensor()});
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
  Owned<double> dout = Owned<double>::random({3, 17}, 2), dx({3, 17}), dbias({17}, 0.5);
  host::gelu_backward({dout.tensor(), x.tensor(), dx.tensor(), dbias.tensor()});
  expect_gradient("dx", x, dx, [&] {
    Owned<double> out({3, 17});
    host::gelu_forward({x.tensor(), out.tensor()});
    return dot(out, dout);
  });
  std::vector<double> sums(17, 0.5);
  for (std::int64_t i = 0; i < dx.size(); ++i) sums[i % 17] += dx[i];
  expect_close("dbias", dbias, sums, 1e-14);
  Owned<double> over = x;
  host::gelu_backward({dout.tensor(), over.tensor(), over.tensor(), dbias.tensor()});
  expect_same_bits("dx over x", over, dx);
  host::gelu_backward({dout.tensor(), x.tensor(), dout.tensor(), dbias.tensor()});
  expect_same_bits("dx in place", dout, dx);
}

TYPED_TEST(GeluTest, StaysFiniteFarFromZero) {
  using T = TypeParam;
  const std::vector<double> at = {-1e4, -50, -12, 12, 50, 1e4};
  Owned<T> x({1, 6}), out({1, 6}), ones({1, 6}, 1.0), dx({1, 6}), dbias({6}, 0.0);
  for (int i = 0; i < 6; ++i) x[i] = static_cast<T>(at[i]);
  host::gelu_forward({x.tensor(), out.tensor()});
  host::gelu_backward({ones.tensor(), x.tensor(), dx.tensor(), dbias.tensor()});
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(out[i], at[i] > 0 ? at[i] : 0.0, 1e-20) << at[i];
    EXPECT_NEAR(dx[i], at[i] > 0 ? 1.0 : 0.0, 1e-20) << at[i];
  }
}

TEST(GatedForward, StaysFiniteFarFromZeroAndNamesTheWrongOperand) {
  Owned<float> x({2, 2}, 1.0), out({2, 1}), dx({2, 2}), ones({2, 1}, 1.0);
  x[0] = -1e4f;
  x[2] = 1e4f;
  host::gated_forward({x.tensor(), out.tensor()});
  host::gated_backward({ones.tensor(), x.tensor(), dx.tensor()});
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 1e4f);
  EXPECT_EQ(dx[0], 0.0f);
  EXPECT_EQ(dx[2], 1.0f);
  EXPECT_THROW(host::gated_forward({out.tensor(), x.tensor()}), InternalError);
}

TEST(GeluForward, RefusesToOverwriteWhatItKeeps) {
  Owned<float> x({2, 4}, 1.0);
  EXPECT_THROW(host::gelu_forward({x.tensor(), x.tensor()}), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
