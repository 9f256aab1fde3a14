#include "optim/lr_schedule.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

constexpr double kPeak = 3e-4, kMinimum = 3e-5;

LearningRateParameters parameters(DecayType type,
                                  ScheduleDialect dialect = ScheduleDialect::megatron) {
  return {type, dialect, kPeak, kMinimum, /*warmup=*/100, /*decay=*/1100};
}

// A printed log of Megatron-LM: peak 1.5e-4, warm-up of 1 % of 320000 iterations of 64 samples,
// 15 iterations skipped by the loss scaler before iteration 30.
TEST(LearningRate, EqualsMegatronsPrintedLog) {
  const LearningRateSchedule schedule(
      {DecayType::cosine, ScheduleDialect::megatron, 1.5e-4, 1e-5, 3200 * 64, 320000 * 64});
  EXPECT_EQ(fmt::format("{:.3E}", schedule.at((30 - 15) * 64)), "7.031E-07");
  EXPECT_EQ(fmt::format("{:.3E}", schedule.at((40 - 15) * 64)), "1.172E-06");
  EXPECT_EQ(fmt::format("{:.3E}", schedule.at((50 - 15) * 64)), "1.641E-06");
}

TEST(LearningRate, FirstIterationRunsWithZeroUnderWarmup) {
  for (const auto dialect : {ScheduleDialect::megatron, ScheduleDialect::v1}) {
    const LearningRateSchedule schedule(parameters(DecayType::cosine, dialect));
    EXPECT_EQ(schedule.at(0), 0);
    EXPECT_DOUBLE_EQ(schedule.at(1), kPeak / 100);
    EXPECT_DOUBLE_EQ(schedule.at(100), kPeak);
  }
  LearningRateParameters cold = parameters(DecayType::cosine);
  cold.warmup = 0;
  EXPECT_DOUBLE_EQ(LearningRateSchedule(cold).at(0), kPeak);
}

TEST(LearningRate, CosineFallsToTheMinimumAndStays) {
  const LearningRateSchedule schedule(parameters(DecayType::cosine));
  EXPECT_DOUBLE_EQ(schedule.at(600), (kPeak + kMinimum) / 2);
  EXPECT_NEAR(schedule.at(350), kMinimum + (kPeak - kMinimum) * 0.853553390593273762, 1e-18);
  EXPECT_NEAR(schedule.at(1100), kMinimum, 1e-18);
  EXPECT_DOUBLE_EQ(schedule.at(1101), kMinimum);
  EXPECT_DOUBLE_EQ(schedule.at(1'000'000'000'000), kMinimum);
}

TEST(LearningRate, LinearFallsToTheMinimum) {
  const LearningRateSchedule schedule(parameters(DecayType::linear));
  EXPECT_DOUBLE_EQ(schedule.at(350), kMinimum + (kPeak - kMinimum) * 0.75);
  EXPECT_NEAR(schedule.at(1100), kMinimum, 1e-18);
  EXPECT_DOUBLE_EQ(schedule.at(5000), kMinimum);
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  for (const auto dialect : {ScheduleDialect::megatron, ScheduleDialect::v1}) {
    const LearningRateSchedule schedule(parameters(DecayType::constant, dialect));
    EXPECT_DOUBLE_EQ(schedule.at(50), kPeak / 2);
    EXPECT_DOUBLE_EQ(schedule.at(5000), kPeak);
  }
}

// Values computed in Python from the formulas of Megatron-LM v1.1.5 (AnnealingLR.get_lr).
TEST(LearningRate, V1DividesByTheWholeLengthAndStopsAWarmupEarly) {
  const LearningRateSchedule cosine(parameters(DecayType::cosine, ScheduleDialect::v1));
  const LearningRateSchedule linear(parameters(DecayType::linear, ScheduleDialect::v1));
  EXPECT_NEAR(cosine.at(101), 0.0002999993882480769, 1e-18);
  EXPECT_NEAR(cosine.at(600), 0.00017134722574099276, 1e-18);
  EXPECT_NEAR(linear.at(600), 0.00016363636363636363, 1e-18);
  EXPECT_NEAR(linear.at(1000), 5.4545454545454546e-05, 1e-18);
  EXPECT_DOUBLE_EQ(linear.at(5000), linear.at(1000));
  EXPECT_DOUBLE_EQ(cosine.at(1000), kMinimum) << "cosine reaches 2.38e-05, below the minimum";
}

TEST(LearningRate, RefusesNonsense) {
  LearningRateParameters bad = parameters(DecayType::cosine);
  bad.warmup = bad.decay;
  EXPECT_THROW(LearningRateSchedule{bad}, InternalError);
  bad = parameters(DecayType::cosine);
  bad.minimum = 2 * kPeak;
  EXPECT_THROW(LearningRateSchedule{bad}, InternalError);
  EXPECT_THROW(LearningRateSchedule(parameters(DecayType::cosine)).at(-1), InternalError);
}

}  // namespace
}  // namespace trireme::optim
