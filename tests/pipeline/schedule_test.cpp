#include "pipeline/schedule.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme::pipeline {
namespace {

/// "F0 F1 B0 ...": kinds and micro-batches.
std::string letters(const StageSchedule& steps) {
  std::string text;
  for (const Step& step : steps)
    text += fmt::format("{}{}{}", text.empty() ? "" : " ",
                        step.kind == StepKind::forward ? 'F' : 'B', step.micro_batch);
  return text;
}

TEST(OneFOneB, OrderOfThreeStages) {
  EXPECT_EQ(letters(one_f_one_b(3, 0, 4)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(letters(one_f_one_b(3, 1, 4)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(letters(one_f_one_b(3, 2, 4)), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(OneFOneB, FewerMicroBatchesThanStages) {
  EXPECT_EQ(letters(one_f_one_b(4, 0, 2)), "F0 F1 B0 B1");
  EXPECT_EQ(letters(one_f_one_b(4, 2, 2)), "F0 F1 B0 B1");
  EXPECT_EQ(letters(one_f_one_b(4, 3, 2)), "F0 B0 F1 B1");
}

TEST(OneFOneB, NeighboursExchangeAndEndsDoNot) {
  for (const Step& step : one_f_one_b(3, 1, 4)) {
    const bool forward = step.kind == StepKind::forward;
    EXPECT_EQ(step.receive_from, forward ? 0 : 2);
    EXPECT_EQ(step.send_to, forward ? 2 : 0);
  }
  for (const Step& step : one_f_one_b(3, 0, 4)) {
    EXPECT_EQ(step.receives(), step.kind == StepKind::backward);
    EXPECT_EQ(step.sends(), step.kind == StepKind::forward);
  }
  for (const Step& step : one_f_one_b(1, 0, 4)) EXPECT_FALSE(step.receives() || step.sends());
}

TEST(OneFOneB, SlotsAreARing) {
  EXPECT_EQ(one_f_one_b_slots(4, 1, 8), 3);
  EXPECT_EQ(one_f_one_b_slots(4, 1, 2), 2);
  for (const Step& step : one_f_one_b(4, 1, 8)) EXPECT_EQ(step.slot, step.micro_batch % 3);
}

TEST(OneFOneB, RefusesNonsense) {
  EXPECT_THROW(one_f_one_b(2, 2, 1), InternalError);
  EXPECT_THROW(one_f_one_b(2, -1, 1), InternalError);
  EXPECT_THROW(one_f_one_b(2, 0, 0), InternalError);
}

TEST(Step, NamesItself) {
  EXPECT_EQ(to_string(Step{.kind = StepKind::backward, .micro_batch = 3}),
            "backward of micro-batch 3");
  EXPECT_EQ(to_string(Step{.kind = StepKind::forward, .micro_batch = 0, .chunk = 2}),
            "forward of micro-batch 0 in chunk 2");
}

}  // namespace
}  // namespace trireme::pipeline
