#include "optim/weight_decay_schedule.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

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
