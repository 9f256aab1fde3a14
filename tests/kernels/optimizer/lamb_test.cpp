#include "kernels/optimizer.hpp"

#include "../kernel_testing.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class LambTest : public ::testing::Test {};
TYPED_TEST_SUITE(LambTest, StorageTypes);

template <typename T>
struct LambState {
  Owned<T> weight, gradient, m, v;

  explicit LambState(std::int64_t n)
      : weight(Owned<T>::random({n}, 1)),
        gradient(Owned<T>::random({n}, 2)),
        m(Owned<T>::random({n}, 3)),
        v({n}, 0.25) {}

  LambDirection step(std::int64_t number) {
    return {.weight = weight.tensor(),
            .gradient = gradient.tensor(),
            .m = m.tensor(),
            .v = v.tensor(),
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-6,
            .weight_decay = 0.1,
            .gradient_scale = 0.5,
            .step = number};
  }
};

TYPED_TEST(LambTest, FollowsTheAlgorithm) {
  using T = TypeParam;
  for (const std::int64_t n : {1, 7, 40000}) {
    LambState<T> state(n);
    std::vector<double> direction(n), m(n), v(n), weight(n);
    for (std::int64_t i = 0; i < n; ++i) {
      const double g = 0.5 * std::as_const(state.gradient)[i];
      weight[i] = std::as_const(state.weight)[i];
      m[i] = 0.9 * std::as_const(state.m)[i] + 0.1 * g;
      v[i] = 0.95 * 0.25 + 0.05 * g * g;
      const double mean = m[i] / (1 - std::pow(0.9, 3));
      const double square = v[i] / (1 - std::pow(0.95, 3));
      direction[i] = mean / (std::sqrt(square) + 1e-6) + 0.1 * weight[i];
    }
    host::lamb_direction(state.step(3));
    expect_close("direction", state.gradient, direction, tolerance<T>(1e-6));
    expect_close("m", state.m, m, tolerance<T>(3e-7));
    expect_close("v", state.v, v, tolerance<T>(3e-7));
    expect_close("weight", state.weight, weight, 0.0);
  }
}

TYPED_TEST(LambTest, RangesChooseWhatDecays) {
  using T = TypeParam;
  const std::vector<std::int64_t> bounds = {2, 50};
  LambState<T> state(100), decays(100), keeps(100);
  LambDirection args = state.step(1), all = decays.step(1), none = keeps.step(1);
  args.decayed = {bounds.data(), 2};
  none.weight_decay = 0.0;
  for (const LambDirection& each : {args, all, none}) host::lamb_direction(each);
  for (std::int64_t i = 0; i < 100; ++i)
    EXPECT_EQ(state.gradient[i], i >= 2 && i < 50 ? decays.gradient[i] : keeps.gradient[i]) << i;
}

TYPED_TEST(LambTest, ThreadsChangeNothing) {
  using T = TypeParam;
  expect_threads_change_nothing<T>("direction", [] {
    LambState<T> state(100003);
    host::lamb_direction(state.step(2));
    return state.gradient;
  });
}

TEST(Lamb, CountsStepsFromOne) {
  LambState<float> state(4);
  EXPECT_THROW(host::lamb_direction(state.step(0)), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
