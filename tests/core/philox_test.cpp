#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace trireme {
namespace {

// Known answers of the authors' Random123 library (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  const Philox4 zero = philox({0, 0, 0, 0}, 0);
  EXPECT_EQ(zero.x, 0x6627e8d5u);
  EXPECT_EQ(zero.y, 0xe169c58du);
  EXPECT_EQ(zero.z, 0xbc57ac4cu);
  EXPECT_EQ(zero.w, 0x9b00dbd8u);
  const Philox4 ones = philox({~0u, ~0u, ~0u, ~0u}, ~0ull);
  EXPECT_EQ(ones.x, 0x408f276du);
  EXPECT_EQ(ones.y, 0x41c83b0eu);
  EXPECT_EQ(ones.z, 0xa20bc7c6u);
  EXPECT_EQ(ones.w, 0x6d5451fdu);
}

TEST(Philox, NormalsHaveTheRightMoments) {
  double sum = 0, squares = 0, fourth = 0;
  const int count = 200000;
  for (int i = 0; i < count; ++i) {
    const double value = philox_normal(1234, name_hash("embedding/word"), i);
    sum += value;
    squares += value * value;
    fourth += value * value * value * value;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(squares / count, 1.0, 0.015);
  EXPECT_NEAR(fourth / count, 3.0, 0.1);
}

TEST(Philox, NormalsAreThoseOfTheFormula) {
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const Philox4 words = named_words(7, 8, i);
    const double expected = std::sqrt(-2.0 * std::log1p(-to_unit(words.x, words.y))) *
                            std::cos(2.0 * std::numbers::pi * to_unit(words.z, words.w));
    ASSERT_NEAR(philox_normal(7, 8, i), expected, 1e-14) << i;
  }
}

// Bits that no machine, compiler or library may change.
TEST(Philox, NormalsHaveKnownBits) {
  std::uint64_t hash = 0;
  for (std::uint64_t i = 0; i < 100000; ++i)
    hash = hash * 0x100000001b3ull + std::bit_cast<std::uint64_t>(philox_normal(1, 2, i));
  EXPECT_EQ(hash, 16885536719322588898ull);
}

TEST(Philox, TruncatedNormalsHaveTheRightMoments) {
  constexpr double kCutoff = 1.5;
  const NormalCutoff cutoff = cutoff_at(kCutoff);
  double sum = 0, squares = 0, largest = 0;
  const int count = 200000;
  for (int i = 0; i < count; ++i) {
    const double value = truncated_normal(named_words(7, 8, i), cutoff);
    sum += value;
    squares += value * value;
    largest = std::max(largest, std::abs(value));
  }
  const double density = std::exp(-kCutoff * kCutoff / 2) / std::sqrt(2 * std::numbers::pi);
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(squares / count, 1 - kCutoff * density / cutoff.half_mass, 0.01);
  EXPECT_LE(largest, kCutoff);
  EXPECT_GT(largest, 0.999 * kCutoff);
}

// Those that an independent program in Python gives.
TEST(Philox, TruncatedNormalsHaveKnownBits) {
  const NormalCutoff cutoff = cutoff_at(3.0);
  std::uint64_t hash = 0;
  for (std::uint64_t i = 0; i < 100000; ++i)
    hash = hash * 0x100000001b3ull +
           std::bit_cast<std::uint64_t>(truncated_normal(named_words(1, 2, i), cutoff));
  EXPECT_EQ(hash, 3555689199389495355ull);
}

TEST(NormalCutoff, HasTheProbabilityOfHalfTheNumbersThatAreLeft) {
  for (const double at : {0.5, 1.0, 2.0, 3.0, 4.5, kMaxNormalCutoff})
    EXPECT_NEAR(cutoff_at(at).half_mass, std::erf(at / std::numbers::sqrt2) / 2, 4e-16) << at;
}

TEST(ExactQuantile, IsTheInverseOfTheDistribution) {
  for (int i = -4999; i < 5000; ++i) {
    const double q = i / 1e4, x = exact::normal_quantile(q);
    ASSERT_NEAR(std::erf(x / std::numbers::sqrt2) / 2, q, 2e-16 + 2e-16 * std::abs(x)) << q;
  }
}

TEST(ExactLog, IsTheLogarithmToTwoUnitsInTheLastPlace) {
  for (double x : {0x1p-53, 0x1.8p-53, 1e-10, 0.1, 0.5, 0.70710678118654746, 0.70710678118654757,
                   0.99, 1 - 0x1p-53, 1.0})
    EXPECT_NEAR(exact::log(x), std::log(x), 4.5e-16 * std::abs(std::log(x))) << x;
}

TEST(ExactCosine, IsTheCosineOfTurns) {
  for (int i = 0; i < 4096; ++i) {
    const double turns = i / 4096.0;
    EXPECT_NEAR(exact::cos_turns(turns), std::cos(2 * std::numbers::pi * turns), 1e-15) << turns;
  }
  EXPECT_EQ(exact::cos_turns(0.0), 1.0);
  EXPECT_EQ(exact::cos_turns(0.25), 0.0);
  EXPECT_EQ(exact::cos_turns(0.5), -1.0);
}

TEST(Philox, StreamsAndSeedsDiffer) {
  EXPECT_NE(philox_normal(1, 2, 3), philox_normal(1, 3, 3));
  EXPECT_NE(philox_normal(1, 2, 3), philox_normal(2, 2, 3));
  EXPECT_EQ(philox_normal(1, 2, 3), philox_normal(1, 2, 3));
}

TEST(DropoutStream, DropsTheStatedFraction) {
  const DropoutStream stream{.seed = 7, .sample = 11, .layer = 2, .site = DropoutSite::mlp};
  const std::uint32_t threshold = dropout_threshold(0.1);
  int dropped = 0;
  const int blocks = 50000;
  for (int block = 0; block < blocks; ++block) {
    const Philox4 words = stream.words(block);
    dropped += (words.x < threshold) + (words.y < threshold) + (words.z < threshold) +
               (words.w < threshold);
  }
  EXPECT_NEAR(dropped / (4.0 * blocks), 0.1, 0.003);
}

TEST(DropoutStream, EveryCoordinateChangesTheMask) {
  const DropoutStream base{.seed = 7, .sample = 11, .layer = 2, .site = DropoutSite::mlp};
  const std::uint32_t word = base.words(5).x;
  for (DropoutStream other :
       {DropoutStream{8, 11, 2, DropoutSite::mlp}, DropoutStream{7, 12, 2, DropoutSite::mlp},
        DropoutStream{7, 11 + (1ull << 32), 2, DropoutSite::mlp},
        DropoutStream{7, 11, 3, DropoutSite::mlp}, DropoutStream{7, 11, 2, DropoutSite::attention}})
    EXPECT_NE(other.words(5).x, word);
  EXPECT_NE(base.words(6).x, word);
  EXPECT_NE(base.words(5 + (1ull << 32)).x, word);
}

}  // namespace
}  // namespace trireme
