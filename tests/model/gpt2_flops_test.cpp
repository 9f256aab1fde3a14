#include "model/families/gpt2_flops.hpp"

#include <gtest/gtest.h>

namespace trireme::model {
namespace {

TEST(ModelFlops, EqualsThePublishedForm) {
  for (const double s : {128.0, 1024.0}) {
    const double l = 12, h = 768, v = 50257;
    EXPECT_DOUBLE_EQ(gpt2_flops_per_token(12, 768, 4 * 768, static_cast<std::int64_t>(s), 50257),
                     72 * l * h * h * (1 + s / (12 * h) + v / (12 * l * h)));
  }
}

TEST(ModelFlops, CountsMultiplicationsOfATinyModel) {
  // Forward per token: matrices 4 h^2 + 8 h^2, scores and values over half of s keys, the head.
  const double l = 2, h = 8, s = 16, v = 32;
  const double forward = 2 * (l * (12 * h * h + 2 * (s / 2) * h) + h * v);
  EXPECT_DOUBLE_EQ(gpt2_flops_per_token(2, 8, 32, 16, 32), 3 * forward);
}

// Counted by hand: attention 4 h^2 + s h, the MLP 2 h f, the head h V multiplications and as many
// additions, three times.
TEST(ModelFlops, CountsTheMlpThatTheModelHas) {
  EXPECT_DOUBLE_EQ(gpt2_flops_per_token(2, 60, 100, 29, 211), 413640);
  EXPECT_DOUBLE_EQ(gpt2_flops_per_token(2, 60, 240, 29, 211), 615240);
}

}  // namespace
}  // namespace trireme::model
