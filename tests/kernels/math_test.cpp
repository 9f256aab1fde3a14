#include "kernels/host/compute.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Exponential, IsAccurateWhereTheResultIsNormal) {
  double worst = 0.0;
  for (float x = -87.3f; x < 88.7f; x += 1.1e-4f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(host::exponential(x) - exact) / exact);
  }
  EXPECT_LT(worst, 1.5e-7);
}

TEST(Exponential, HandlesTheEnds) {
  EXPECT_EQ(host::exponential(0.0f), 1.0f);
  EXPECT_EQ(host::exponential(-0.0f), 1.0f);
  EXPECT_EQ(host::exponential(-kInfinity), 0.0f);
  EXPECT_EQ(host::exponential(-1e4f), 0.0f);
  EXPECT_EQ(host::exponential(kInfinity), kInfinity);
  EXPECT_EQ(host::exponential(1e4f), kInfinity);
  EXPECT_TRUE(std::isnan(host::exponential(std::numeric_limits<float>::quiet_NaN())));
  for (float x = -104.0f; x < -87.0f; x += 0.01f)  // subnormal results: absolute error
    EXPECT_NEAR(host::exponential(x), std::exp(static_cast<double>(x)), 3e-45 + 2e-7 * std::exp(x))
        << x;
}

TEST(Exponential, DoesNotDependOnThePlaceInALoop) {
  std::vector<float> x(67), all(67);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = -20.0f + 0.61f * static_cast<float>(i);
#pragma omp simd
  for (std::size_t i = 0; i < x.size(); ++i) all[i] = host::exponential(x[i]);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(all[i], host::exponential(x[i])) << x[i];
}

TEST(SumOf, AccumulatesInDouble) {
  std::vector<float> x(100001, 0.1f);
  const double sum = host::sum_of(100001, [&](std::int64_t i) { return x[i]; });
  EXPECT_NEAR(sum, 100001 * static_cast<double>(0.1f), 1e-8);
  EXPECT_EQ(host::sum_of(0, [&](std::int64_t i) { return x[i]; }), 0.0);
}

TEST(LargestOf, CoversEveryElement) {
  for (int n = 1; n < 70; ++n)
    for (int place = 0; place < n; ++place) {
      std::vector<float> x(n, -kInfinity);
      x[place] = -3.0f;
      EXPECT_EQ(host::largest_of(x.data(), n), -3.0f) << place << " of " << n;
    }
  EXPECT_EQ(host::largest_of<float>(nullptr, 0), -kInfinity);
}

}  // namespace
}  // namespace trireme::kernels
