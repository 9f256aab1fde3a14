#include "kernels/optimizer.hpp"

#include "../kernel_testing.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class SgdTest : public ::testing::Test {};
TYPED_TEST_SUITE(SgdTest, StorageTypes);

template <typename T>
struct SgdState {
  Owned<T> weight, gradient, m;

  explicit SgdState(std::int64_t n)
      : weight(Owned<T>::random({n}, 1)), gradient(Owned<T>::random({n}, 2)), m({n}, 0.0) {}

  Sgd step(bool with_momentum) {
    return {.weight = weight.tensor(),
            .gradient = gradient.tensor(),
            .m = with_momentum ? m.tensor() : Tensor{},
            .learning_rate = 1e-2,
            .momentum = with_momentum ? 0.9 : 0.0,
            .weight_decay = 0.1,
            .gradient_scale = 0.5};
  }
};

TYPED_TEST(SgdTest, FollowsTheFormulas) {
  using T = TypeParam;
  for (const bool with_momentum : {false, true}) {
    for (const std::int64_t n : {1, 7, 40000}) {
      SgdState<T> state(n);
      std::vector<double> weight, m(n);
      for (std::int64_t i = 0; i < n; ++i) weight.push_back(std::as_const(state.weight)[i]);
      for (int step = 0; step < 3; ++step) {
        for (std::int64_t i = 0; i < n; ++i) {
          const double g = 0.5 * std::as_const(state.gradient)[i] + 0.1 * weight[i];
          m[i] = (with_momentum ? 0.9 : 0.0) * m[i] + g;
          weight[i] -= 1e-2 * m[i];
        }
        host::sgd(state.step(with_momentum));
      }
      expect_close("weight", state.weight, weight, tolerance<T>(3e-7));
      if (with_momentum) expect_close("m", state.m, m, tolerance<T>(5e-7));
    }
  }
}

TYPED_TEST(SgdTest, RangesChooseWhatDecays) {
  using T = TypeParam;
  const std::vector<std::int64_t> bounds = {0, 3, 40, 40, 50, 90};
  const auto inside = [](std::int64_t i) { return i < 3 || (i >= 50 && i < 90); };
  SgdState<T> state(100), decays(100), keeps(100);
  Sgd args = state.step(true), all = decays.step(true), none = keeps.step(true);
  args.decayed = {bounds.data(), 6};
  none.weight_decay = 0.0;
  for (const Sgd& each : {args, all, none}) host::sgd(each);
  for (std::int64_t i = 0; i < 100; ++i)
    EXPECT_EQ(state.weight[i], inside(i) ? decays.weight[i] : keeps.weight[i]) << i;
}

TYPED_TEST(SgdTest, ThreadsChangeNothing) {
  using T = TypeParam;
  expect_threads_change_nothing<T>("weight", [] {
    SgdState<T> state(100003);
    host::sgd(state.step(true));
    return state.weight;
  });
}

}  // namespace
}  // namespace trireme::kernels
