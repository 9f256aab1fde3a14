#include "kernels/optimizer.hpp"

#include "../kernel_testing.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class AdamWTest : public ::testing::Test {};
TYPED_TEST_SUITE(AdamWTest, StorageTypes);

template <typename T>
struct AdamWState {
  Owned<T> weight, gradient, m, v;

  explicit AdamWState(std::int64_t n)
      : weight(Owned<T>::random({n}, 1)),
        gradient(Owned<T>::random({n}, 2, 1e-2)),
        m({n}, 0.0),
        v({n}, 0.0) {}

  AdamW step(std::int64_t number) {
    return {.weight = weight.tensor(),
            .gradient = gradient.tensor(),
            .m = m.tensor(),
            .v = v.tensor(),
            .learning_rate = 1e-2,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .gradient_scale = 0.5,
            .step = number};
  }
};

TYPED_TEST(AdamWTest, FollowsTheAlgorithm) {
  using T = TypeParam;
  for (const std::int64_t n : {1, 7, 40000}) {
    AdamWState<T> state(n);
    std::vector<double> weight, m(n), v(n);
    for (std::int64_t i = 0; i < n; ++i) weight.push_back(state.weight[i]);
    for (std::int64_t step = 1; step <= 3; ++step) {
      for (std::int64_t i = 0; i < n; ++i) {
        const double g = 0.5 * state.gradient[i];
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.95 * v[i] + 0.05 * g * g;
        const double mean = m[i] / (1 - std::pow(0.9, step));
        const double square = v[i] / (1 - std::pow(0.95, step));
        weight[i] -= 1e-2 * (mean / (std::sqrt(square) + 1e-8) + 0.1 * weight[i]);
      }
      host::adamw(state.step(step));
    }
    expect_close("weight", state.weight, weight, tolerance<T>(3e-7));
    expect_close("m", state.m, m, tolerance<T>(5e-7));
    expect_close("v", state.v, v, tolerance<T>(5e-7));
  }
}

TYPED_TEST(AdamWTest, DecaysInTheGradientWhereTold) {
  using T = TypeParam;
  AdamWState<T> state(1000);
  std::vector<double> weight(1000), v(1000);
  for (std::int64_t i = 0; i < 1000; ++i) {
    const double w = std::as_const(state.weight)[i];
    const double g = 0.5 * std::as_const(state.gradient)[i] + 0.1 * w;
    v[i] = 0.05 * g * g;
    weight[i] = w - 1e-2 * g / (std::abs(g) + 1e-8);  // the first step's moments are g and g^2
  }
  AdamW args = state.step(1);
  args.decay_in_gradient = true;
  host::adamw(args);
  expect_close("weight", state.weight, weight, tolerance<T>(3e-7));
  expect_close("v", state.v, v, tolerance<T>(5e-7));
}

TYPED_TEST(AdamWTest, PiecesOfABufferUpdateLikeTheWhole) {
  using T = TypeParam;
  AdamWState<T> whole(20011), pieces(20011);
  host::adamw(whole.step(4));
  for (const auto& [begin, count] : {std::pair{0, 3}, {3, 13000}, {13003, 7008}}) {
    AdamW part = pieces.step(4);
    for (Tensor* tensor : {&part.weight, &part.gradient, &part.m, &part.v})
      *tensor = tensor->rows(begin, count);
    host::adamw(part);
  }
  expect_same_bits("weight", whole.weight, pieces.weight);
  expect_same_bits("v", whole.v, pieces.v);
}

TYPED_TEST(AdamWTest, ThreadsChangeNothing) {
  using T = TypeParam;
  expect_threads_change_nothing<T>("weight", [] {
    AdamWState<T> state(100003);
    host::adamw(state.step(2));
    return state.weight;
  });
  Owned<T> x = Owned<T>::random({100003}, 1);
  expect_threads_change_nothing<double>("squared sum", [&] {
    Owned<double> sum({1}, 0.0);
    host::squared_sum({x.tensor(), sum.tensor()});
    return sum;
  });
}

TYPED_TEST(AdamWTest, SquaredSumAdds) {
  using T = TypeParam;
  for (const std::int64_t n : {0, 1, 5, 50001}) {
    Owned<T> x = Owned<T>::random({n}, 1);
    Owned<double> sum({1}, 2.0);
    double expected = 2.0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double value = std::as_const(x)[i];
      expected += value * value;
    }
    host::squared_sum({x.tensor(), sum.tensor()});
    EXPECT_NEAR(sum[0], expected, 1e-12 * expected);
  }
}

TYPED_TEST(AdamWTest, RangesChooseWhatDecaysAndWhatCounts) {
  using T = TypeParam;
  const std::vector<std::int64_t> bounds = {0, 3, 40, 40, 50, 90};
  const auto inside = [](std::int64_t i) { return i < 3 || (i >= 50 && i < 90); };
  AdamWState<T> state(100), decays(100), keeps(100);
  AdamW args = state.step(1), all = decays.step(1), none = keeps.step(1);
  args.decayed = {bounds.data(), 6};
  none.weight_decay = 0.0;
  host::adamw(args);
  host::adamw(all);
  host::adamw(none);
  double expected = 0.0;
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(state.weight[i], inside(i) ? decays.weight[i] : keeps.weight[i]) << i;
    const double gradient = std::as_const(state.gradient)[i];
    if (inside(i)) expected += gradient * gradient;
  }
  Owned<double> sum({1}, 0.0);
  host::squared_sum({state.gradient.tensor(), sum.tensor(), {bounds.data(), 6}});
  EXPECT_NEAR(sum[0], expected, 1e-12 * expected);
}

TEST(AdamW, CountsStepsFromOne) {
  AdamWState<float> state(4);
  EXPECT_THROW(host::adamw(state.step(0)), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
