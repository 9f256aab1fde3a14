#include "optim/schedules.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

/// The scales after each iteration of `overflows`, '1' for one that overflows.
std::vector<double> scales(LossScaler& scaler, const std::string& overflows) {
  std::vector<double> result;
  for (const char overflow : overflows) {
    scaler.update(overflow == '1');
    result.push_back(scaler.scale());
  }
  return result;
}

constexpr auto kBoth = {LossScaleDialect::megatron, LossScaleDialect::deepspeed};

LossScaler small_scaler(LossScaleDialect dialect) {
  return LossScaler({.dynamic = true,
                     .dialect = dialect,
                     .initial = 64,
                     .minimum = 16,
                     .window = 3,
                     .hysteresis = 2});
}

TEST(LossScaler, CanFallUntilItsMinimum) {
  for (const LossScaleDialect dialect : kBoth) {
    LossScaler scaler = small_scaler(dialect);
    while (scaler.scale() > 16) {
      EXPECT_TRUE(scaler.can_fall()) << scaler.scale();
      scaler.update(/*overflow=*/true);
    }
    EXPECT_FALSE(scaler.can_fall());
  }
  EXPECT_FALSE(LossScaler({.initial = 64, .minimum = 16}).can_fall()) << "a constant scale";
}

// A printed log of Megatron-LM: 15 iterations overflow from 2^32 on, the first of which only takes
// from the hysteresis.
TEST(LossScaler, EqualsMegatronsPrintedLog) {
  LossScaler scaler({.dynamic = true, .initial = 4294967296});
  EXPECT_EQ(scales(scaler, std::string(15, '1')).back(), 262144);
  EXPECT_EQ(scales(scaler, std::string(35, '0')).back(), 262144);
}

TEST(LossScaler, HysteresisIsFilledUpByGrowthAlone) {
  for (const auto dialect : kBoth) {
    LossScaler scaler = small_scaler(dialect);
    const std::vector<double> expected = {64, 64, 32, 32, 32, 64, 64, 32};
    EXPECT_EQ(scales(scaler, "10100011"), expected);
  }
}

TEST(LossScaler, AnOverflowRestartsTheWindow) {
  for (const auto dialect : kBoth) {
    LossScaler scaler = small_scaler(dialect);
    const std::vector<double> expected = {64, 64, 64, 64, 64, 128, 128, 128, 256};
    EXPECT_EQ(scales(scaler, "001000000"), expected);
  }
}

TEST(LossScaler, HysteresisOfOneHalvesImmediately) {
  for (const auto dialect : kBoth) {
    LossScaler scaler(
        {.dynamic = true, .dialect = dialect, .initial = 64, .window = 3, .hysteresis = 1});
    EXPECT_EQ(scales(scaler, "11").back(), 16);
  }
}

TEST(LossScaler, AtTheMinimumMegatronStaysAndDeepSpeedAborts) {
  LossScaler megatron = small_scaler(LossScaleDialect::megatron);
  EXPECT_EQ(scales(megatron, "11111").back(), 16);
  LossScaler deepspeed = small_scaler(LossScaleDialect::deepspeed);
  EXPECT_EQ(scales(deepspeed, "111").back(), 16);
  try {
    deepspeed.update(true);
    FAIL() << "went on at " << deepspeed.scale();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::diverged);
    EXPECT_STREQ(error.what(),
                 "Current loss scale already at minimum - cannot decrease scale anymore. Exiting "
                 "run. (precision.loss_scale.minimum = 16: gradients overflow at every scale; "
                 "precision.compute: bf16 needs none)");
  }
}

// What DeepSpeed raises at is the minimum itself: a scale that a halving would take below it is set
// to it first.
TEST(LossScaler, StopsAtAMinimumThatIsNoPowerOfTwo) {
  LossScaler scaler({.dynamic = true,
                     .dialect = LossScaleDialect::deepspeed,
                     .initial = 64,
                     .minimum = 50,
                     .hysteresis = 1});
  EXPECT_EQ(scales(scaler, "1").back(), 50);
  EXPECT_THROW(scaler.update(true), Error);
}

TEST(LossScaler, ResumesFromItsState) {
  const std::string overflows = "1001000100011000000";
  for (const auto dialect : kBoth) {
    LossScaler whole = small_scaler(dialect);
    const std::vector<double> expected = scales(whole, overflows);
    for (std::size_t cut = 0; cut <= overflows.size(); ++cut) {
      LossScaler first = small_scaler(dialect), second = small_scaler(dialect);
      std::vector<double> found = scales(first, overflows.substr(0, cut));
      second.restore(first.state());
      for (const double scale : scales(second, overflows.substr(cut))) found.push_back(scale);
      EXPECT_EQ(found, expected) << "cut after " << cut;
      EXPECT_EQ(second.state(), whole.state());
    }
  }
}

TEST(LossScaler, ResumesWithOtherParameters) {
  for (const auto dialect : kBoth) {
    LossScaler shorter = small_scaler(dialect);
    shorter.restore({.scale = 64, .good_iterations = 4, .hysteresis_left = 1});
    EXPECT_EQ(scales(shorter, "00").back(), 128) << "a window that was longer";
    LossScaler stricter = small_scaler(dialect);
    stricter.restore({.scale = 64, .hysteresis_left = 100});
    EXPECT_EQ(scales(stricter, "11").back(), 32) << "a hysteresis that was larger";
  }
}

TEST(LossScaler, ARaisedMinimumRaisesTheScaleOfACheckpoint) {
  LossScaler scaler = small_scaler(LossScaleDialect::megatron);
  scaler.restore({.scale = 8, .good_iterations = 1, .hysteresis_left = 2});
  EXPECT_EQ(scaler.scale(), 16);
  EXPECT_FALSE(scaler.can_fall());
  EXPECT_EQ(scales(scaler, "00").back(), 32) << "the window continues";
}

TEST(LossScaler, AConstantScaleStays) {
  LossScaler scaler({.initial = 128});
  EXPECT_EQ(scales(scaler, "1111000").back(), 128);
  scaler.restore({.scale = 64, .hysteresis_left = 2});
  EXPECT_EQ(scaler.scale(), 128);
  LossScaler dynamic({.dynamic = true, .initial = 512});
  dynamic.restore(scaler.state());
  EXPECT_EQ(dynamic.scale(), 512) << "the state of a constant scale says nothing to a dynamic one";
}

TEST(LossScaler, RefusesNonsense) {
  EXPECT_THROW(LossScaler({.initial = 0}), InternalError);
  EXPECT_THROW(LossScaler({.dynamic = true, .window = 0}), InternalError);
  EXPECT_THROW(LossScaler({.dynamic = true, .hysteresis = 0}), InternalError);
}

}  // namespace
}  // namespace trireme::optim
