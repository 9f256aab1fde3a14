#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>

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
