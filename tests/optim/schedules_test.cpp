#include "optim/schedules.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

constexpr double kPeak = 3e-4, kMinimum = 3e-5;

LearningRateParameters parameters(ScheduleType type,
                                  ScheduleDialect dialect = ScheduleDialect::megatron) {
  return {type, dialect, kPeak, kMinimum, /*warmup=*/100, /*decay=*/1100};
}

// A printed log of Megatron-LM: peak 1.5e-4, warm-up of 1 % of 320000 iterations of 64 samples,
// 15 iterations skipped by the loss scaler before iteration 30.
TEST(LearningRate, EqualsMegatronsPrintedLog) {
  const LearningRateSchedule schedule(
      {ScheduleType::cosine, ScheduleDialect::megatron, 1.5e-4, 1e-5, 3200 * 64, 320000 * 64});
  EXPECT_EQ(fmt::format("{:.3E}", schedule.at((30 - 15) * 64)), "7.031E-07");
  EXPECT_EQ(fmt::format("{:.3E}", schedule.at((40 - 15) * 64)), "1.172E-06");
  EXPECT_EQ(fmt::format("{:.3E}", schedule.at((50 - 15) * 64)), "1.641E-06");
}

TEST(LearningRate, FirstIterationRunsWithZeroUnderWarmup) {
  for (const auto dialect : {ScheduleDialect::megatron, ScheduleDialect::v1}) {
    const LearningRateSchedule schedule(parameters(ScheduleType::cosine, dialect));
    EXPECT_EQ(schedule.at(0), 0);
    EXPECT_DOUBLE_EQ(schedule.at(1), kPeak / 100);
    EXPECT_DOUBLE_EQ(schedule.at(100), kPeak);
  }
  LearningRateParameters cold = parameters(ScheduleType::cosine);
  cold.warmup = 0;
  EXPECT_DOUBLE_EQ(LearningRateSchedule(cold).at(0), kPeak);
}

TEST(LearningRate, WarmupNeedBeNoWholeNumber) {
  for (const auto dialect : {ScheduleDialect::megatron, ScheduleDialect::v1}) {
    LearningRateParameters short_warmup = parameters(ScheduleType::linear, dialect);
    short_warmup.warmup = 1.5;
    const LearningRateSchedule schedule(short_warmup);
    EXPECT_DOUBLE_EQ(schedule.at(1), kPeak / 1.5);
    EXPECT_LT(schedule.at(2), kPeak);
    EXPECT_GT(schedule.at(2), 0.999 * kPeak);
  }
}

TEST(LearningRate, CosineFallsToTheMinimumAndStays) {
  const LearningRateSchedule schedule(parameters(ScheduleType::cosine));
  EXPECT_DOUBLE_EQ(schedule.at(600), (kPeak + kMinimum) / 2);
  EXPECT_NEAR(schedule.at(350), kMinimum + (kPeak - kMinimum) * 0.853553390593273762, 1e-18);
  EXPECT_NEAR(schedule.at(1100), kMinimum, 1e-18);
  EXPECT_DOUBLE_EQ(schedule.at(1101), kMinimum);
  EXPECT_DOUBLE_EQ(schedule.at(1'000'000'000'000), kMinimum);
}

TEST(LearningRate, LinearFallsToTheMinimum) {
  const LearningRateSchedule schedule(parameters(ScheduleType::linear));
  EXPECT_DOUBLE_EQ(schedule.at(350), kMinimum + (kPeak - kMinimum) * 0.75);
  EXPECT_NEAR(schedule.at(1100), kMinimum, 1e-18);
  EXPECT_DOUBLE_EQ(schedule.at(5000), kMinimum);
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  for (const auto dialect : {ScheduleDialect::megatron, ScheduleDialect::v1}) {
    const LearningRateSchedule schedule(parameters(ScheduleType::constant, dialect));
    EXPECT_DOUBLE_EQ(schedule.at(50), kPeak / 2);
    EXPECT_DOUBLE_EQ(schedule.at(5000), kPeak);
  }
}

// Values computed in Python from the formulas of Megatron-LM v1.1.5 (AnnealingLR.get_lr).
TEST(LearningRate, V1DividesByTheWholeLengthAndStopsAWarmupEarly) {
  const LearningRateSchedule cosine(parameters(ScheduleType::cosine, ScheduleDialect::v1));
  const LearningRateSchedule linear(parameters(ScheduleType::linear, ScheduleDialect::v1));
  EXPECT_NEAR(cosine.at(101), 0.0002999993882480769, 1e-18);
  EXPECT_NEAR(cosine.at(600), 0.00017134722574099276, 1e-18);
  EXPECT_NEAR(linear.at(600), 0.00016363636363636363, 1e-18);
  EXPECT_NEAR(linear.at(1000), 5.4545454545454546e-05, 1e-18);
  EXPECT_DOUBLE_EQ(linear.at(5000), linear.at(1000));
  EXPECT_DOUBLE_EQ(cosine.at(1000), kMinimum) << "cosine reaches 2.38e-05, below the minimum";
}

// The next two: values computed in Python from Megatron-LM v1.1.5's AnnealingLR and today's
// OptimizerParamScheduler.
TEST(LearningRate, ExponentialIsThatOfV1) {
  const LearningRateSchedule v1(parameters(ScheduleType::exponential, ScheduleDialect::v1));
  EXPECT_DOUBLE_EQ(v1.at(600), 0.00021893666228071704);
  EXPECT_DOUBLE_EQ(v1.at(1000), 0.0001701673687280652);
  EXPECT_DOUBLE_EQ(v1.at(5000), v1.at(1000));
  // In today's dialect over the decay alone, and at the minimum after it.
  const LearningRateSchedule megatron(parameters(ScheduleType::exponential));
  EXPECT_DOUBLE_EQ(megatron.at(600), 0.00021214764578618138);
  EXPECT_DOUBLE_EQ(megatron.at(1100), kPeak * std::exp(-0.693));
  EXPECT_EQ(megatron.at(1101), kMinimum);
}

TEST(LearningRate, InverseSquareRootIsThatOfMegatron) {
  const LearningRateSchedule megatron(parameters(ScheduleType::inverse_square_root));
  EXPECT_DOUBLE_EQ(megatron.at(50), kPeak / 2);
  EXPECT_DOUBLE_EQ(megatron.at(101), 0.0002985111570629967);
  EXPECT_DOUBLE_EQ(megatron.at(400), 0.00015);
  EXPECT_DOUBLE_EQ(megatron.at(1100), 9.045340337332907e-05);
  EXPECT_EQ(megatron.at(1101), kMinimum);
  LearningRateParameters low = parameters(ScheduleType::inverse_square_root);
  low.minimum = 2e-4;
  EXPECT_EQ(LearningRateSchedule(low).at(400), 2e-4);
  low.warmup = 0;
  EXPECT_EQ(LearningRateSchedule(low).at(0), kPeak);
  const LearningRateSchedule v1(parameters(ScheduleType::inverse_square_root, ScheduleDialect::v1));
  EXPECT_DOUBLE_EQ(v1.at(400), 0.00015);
  EXPECT_DOUBLE_EQ(v1.at(5000), v1.at(1000));
}

// Values computed in Python from DeepSpeed's LRRangeTest: after n steps its last_batch_iteration is
// n - 1.
TEST(LearningRate, RangeTestRisesFromTheMinimum) {
  LearningRateParameters test{.type = ScheduleType::lr_range_test,
                              .minimum = 1e-5,
                              .range_test = {.step = 2000, .rate = 5}};
  const LearningRateSchedule line(test);
  EXPECT_EQ(line.at(0), 1e-5);
  EXPECT_DOUBLE_EQ(line.at(1), 1.0025e-05);
  EXPECT_DOUBLE_EQ(line.at(500), 2.25e-05);
  EXPECT_DOUBLE_EQ(line.at(7000), 0.000185);
  test.range_test.staircase = true;
  const LearningRateSchedule stairs(test);
  EXPECT_EQ(stairs.at(1999), 1e-5);
  EXPECT_DOUBLE_EQ(stairs.at(2000), 6e-5);
  EXPECT_DOUBLE_EQ(stairs.at(3000), 6e-5);
  EXPECT_DOUBLE_EQ(stairs.at(7000), 0.00016);
  test.minimum = 0;
  EXPECT_THROW(LearningRateSchedule{test}, InternalError);
}

// Peak 3e-4, minimum 3e-5, warm-up of 100, the last 200 of 1100 fall: three quarters of them at
// 1050.
TEST(LearningRate, StaysAtThePeakUntilTheLastPart) {
  for (const ScheduleDialect dialect : {ScheduleDialect::megatron, ScheduleDialect::v1})
    for (const auto& [shape, share] : {std::pair{WsdShape::linear, 0.25},
                                       {WsdShape::cosine, 0.14644660940672627},
                                       {WsdShape::exponential, 0.18920711500272103},
                                       {WsdShape::minus_sqrt, 0.1339745962155614}}) {
      LearningRateParameters wsd = parameters(ScheduleType::wsd, dialect);
      wsd.wsd = {.length = 200, .shape = shape};
      const LearningRateSchedule schedule(wsd);
      EXPECT_DOUBLE_EQ(schedule.at(50), kPeak / 2);
      for (const int position : {100, 101, 500, 900})
        EXPECT_DOUBLE_EQ(schedule.at(position), kPeak);
      EXPECT_DOUBLE_EQ(schedule.at(1050), kMinimum + share * (kPeak - kMinimum));
      EXPECT_NEAR(schedule.at(1100), kMinimum, 1e-15);
      EXPECT_EQ(schedule.at(5000), kMinimum);
      // A later end changes nothing before the fall: one stable run serves many lengths.
      wsd.decay = 2100;
      EXPECT_DOUBLE_EQ(LearningRateSchedule(wsd).at(900), schedule.at(900));
      wsd.wsd.length = 2050;
      EXPECT_THROW(LearningRateSchedule{wsd}, InternalError);
    }
}

// 0.2 and 0.8 of 24 are 4.800000000000001 and 19.200000000000003.
TEST(LearningRate, FractionsNeedNotAddUpToTheLastBit) {
  LearningRateParameters wsd = parameters(ScheduleType::wsd);
  for (std::int64_t decay = 2; decay < 3000; ++decay) {
    const auto whole = static_cast<double>(decay);
    wsd.decay = decay;
    wsd.warmup = 0.2 * whole;
    wsd.wsd = {.length = 0.8 * whole};
    EXPECT_NEAR(LearningRateSchedule(wsd).at(decay), kMinimum, 1e-15);
  }
}

TEST(LearningRate, RefusesNonsense) {
  LearningRateParameters bad = parameters(ScheduleType::cosine);
  bad.warmup = bad.decay;
  EXPECT_THROW(LearningRateSchedule{bad}, InternalError);
  bad = parameters(ScheduleType::cosine);
  bad.minimum = 2 * kPeak;
  EXPECT_THROW(LearningRateSchedule{bad}, InternalError);
  EXPECT_THROW(LearningRateSchedule(parameters(ScheduleType::cosine)).at(-1), InternalError);
}

TEST(WeightDecay, ConstantStays) {
  const WeightDecaySchedule schedule({RampType::constant, 0.1, 0.1, 1000});
  for (const std::int64_t position : {0, 500, 5000}) EXPECT_EQ(schedule.at(position), 0.1);
}

TEST(WeightDecay, RampsReachTheEndAndStay) {
  const WeightDecaySchedule linear({RampType::linear, 0.02, 0.1, 1000});
  EXPECT_EQ(linear.at(0), 0.02);
  EXPECT_DOUBLE_EQ(linear.at(250), 0.04);
  EXPECT_DOUBLE_EQ(linear.at(1000), 0.1);
  EXPECT_EQ(linear.at(1001), 0.1);
  const WeightDecaySchedule cosine({RampType::cosine, 0.02, 0.1, 1000});
  EXPECT_DOUBLE_EQ(cosine.at(0), 0.02);
  EXPECT_NEAR(cosine.at(250), 0.031715728752538102, 1e-17);  // 0.02 + 0.08 (1 - sqrt(1/2)) / 2
  EXPECT_DOUBLE_EQ(cosine.at(500), 0.06);
  EXPECT_DOUBLE_EQ(cosine.at(1000), 0.1);
  EXPECT_EQ(cosine.at(5000), 0.1);
}

TEST(WeightDecay, RefusesNonsense) {
  EXPECT_THROW(WeightDecaySchedule({RampType::constant, 0.1, 0.2, 10}), InternalError);
  EXPECT_THROW(WeightDecaySchedule({RampType::linear, 0.1, 0.2, 0}), InternalError);
}

}  // namespace
}  // namespace trireme::optim
