#include "kernels/norms.hpp"

#include "kernel_testing.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::kernels {
namespace {

constexpr Dropout kMaskedDropout{.probability = 0.3,
                                 .seed = 42,
                                 .first_sample = &kFirstSample,
                                 .layer = 5,
                                 .site = DropoutSite::projection};

// The factor of element [i, j, k] of [s, b, h], straight from the definition of DropoutStream.
double factor(const Dropout& dropout, std::int64_t h, std::int64_t i, std::int64_t j,
              std::int64_t k) {
  const DropoutStream stream{dropout.seed, kFirstSample + static_cast<std::uint64_t>(j),
                             dropout.layer, dropout.site};
  const std::uint64_t element = static_cast<std::uint64_t>(i * h + k);
  const Philox4 words = stream.words(element / 4);
  const std::uint32_t word = std::array{words.x, words.y, words.z, words.w}[element % 4];
  return word < dropout_threshold(dropout.probability) ? 0.0 : 1.0 / (1.0 - dropout.probability);
}

TEST(DropoutMask, IsTheStreamAtAnyOffsetAndLength) {
  const host::DropoutMask mask(kMaskedDropout, 2);
  for (const std::uint64_t first : {0ull, 1ull, 6ull, 1021ull, (1ull << 34) - 3})
    for (const std::int64_t count : {1, 2, 5, 1024, 2051}) {
      Owned<double> factors({count});
      mask.draw(first, count, factors.tensor().as<double>());
      std::vector<double> expected;
      for (std::int64_t k = 0; k < count; ++k)
        expected.push_back(factor(kMaskedDropout, 1, static_cast<std::int64_t>(first), 2, k));
      expect_close("factors", factors, expected, 1e-15);
    }
}

template <typename T>
class DropoutTest : public ::testing::Test {};
TYPED_TEST_SUITE(DropoutTest, StorageTypes);

TYPED_TEST(DropoutTest, ForwardAndBackwardUseTheMaskOfTheLogicalElement) {
  using T = TypeParam;
  for (const Shape shape : {Shape{1, 1, 1}, Shape{7, 3, 5}, Shape{34, 2, 130}})
    for (const double probability : {0.0, 0.3}) {
      const std::int64_t first = shape[0] % 2 == 0 ? 0 : 11;  // of a sequence that begins before
      Dropout dropout = kMaskedDropout;
      dropout.probability = probability;
      const std::int64_t b = shape[1], h = shape[2];
      Owned<T> x = Owned<T>::random(shape, 1), residual = Owned<T>::random(shape, 2);
      Owned<T> bias = Owned<T>::random({h}, 3), out(shape), dx(shape);
      std::vector<double> expected, gradient;
      for (std::int64_t e = 0; e < x.size(); ++e) {
        const double scale = factor(dropout, h, first + e / (b * h), e / h % b, e % h);
        expected.push_back(residual[e] + (x[e] + bias[e % h]) * scale);
        gradient.push_back(x[e] * scale);
      }
      host::bias_dropout_residual(
          {x.tensor(), bias.tensor(), residual.tensor(), out.tensor(), dropout, first});
      host::dropout_backward({x.tensor(), dx.tensor(), dropout, first});
      expect_close("out", out, expected, tolerance<T>(3e-7));
      expect_close("dx", dx, gradient, tolerance<T>(2e-7));

      host::bias_dropout_residual(
          {x.tensor(), bias.tensor(), residual.tensor(), residual.tensor(), dropout, first});
      expect_same_bits("out in place", residual, out);
      // Without a bias the sum is that of a bias of zeros.
      Owned<T> zeros({h}, 0.0), without(shape);
      host::bias_dropout_residual(
          {x.tensor(), zeros.tensor(), residual.tensor(), out.tensor(), dropout, first});
      host::bias_dropout_residual(
          {x.tensor(), {}, residual.tensor(), without.tensor(), dropout, first});
      expect_same_bits("out without a bias", without, out);
      host::dropout_backward({x.tensor(), x.tensor(), dropout, first});
      expect_same_bits("dx in place", x, dx);
    }
}

TYPED_TEST(DropoutTest, ThreadsChangeNothing) {
  using T = TypeParam;
  Owned<T> x = Owned<T>::random({19, 3, 67}, 1), bias({67}, 0.5);
  expect_threads_change_nothing<T>("out", [&] {
    Owned<T> out({19, 3, 67});
    host::bias_dropout_residual(
        {x.tensor(), bias.tensor(), x.tensor(), out.tensor(), kMaskedDropout});
    return out;
  });
}

TEST(Dropout, GradientMatchesFiniteDifferences) {
  Owned<double> x = Owned<double>::random({3, 2, 5}, 1), residual({3, 2, 5}, 0.5), bias({5}, 0.1);
  Owned<double> dout = Owned<double>::random({3, 2, 5}, 2), dx({3, 2, 5});
  host::dropout_backward({dout.tensor(), dx.tensor(), kMaskedDropout});
  expect_gradient("dx", x, dx, [&] {
    Owned<double> out({3, 2, 5});
    host::bias_dropout_residual(
        {x.tensor(), bias.tensor(), residual.tensor(), out.tensor(), kMaskedDropout});
    return dot(out, dout);
  });
}

TEST(Dropout, RefusesAProbabilityOfOne) {
  Owned<float> x({1, 1, 4}, 1.0);
  EXPECT_THROW(host::dropout_backward({x.tensor(), x.tensor(), {.probability = 1.0}}),
               InternalError);
}

}  // namespace
}  // namespace trireme::kernels
