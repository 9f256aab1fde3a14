#include "pipeline/schedule.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme::pipeline {
namespace {

/// "F0 F1 B0 ...": kinds and micro-batches, with a stroke for each chunk before the step's. Of a
/// backward in two steps the first is I, the second W.
std::string letters(const StageSchedule& steps) {
  std::string text;
  for (const Step& step : steps)
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", "FBIW"[static_cast<int>(step.kind)],
                        step.micro_batch, std::string(step.chunk, '\''));
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
  EXPECT_EQ(count_slots(one_f_one_b(4, 1, 8)), 3);
  EXPECT_EQ(count_slots(one_f_one_b(4, 1, 2)), 2);
  for (const Step& step : one_f_one_b(4, 1, 8)) EXPECT_EQ(step.slot, step.micro_batch % 3);
}

TEST(OneFOneB, RefusesNonsense) {
  EXPECT_THROW(one_f_one_b(2, 2, 1), InternalError);
  EXPECT_THROW(one_f_one_b(2, -1, 1), InternalError);
  EXPECT_THROW(one_f_one_b(2, 0, 0), InternalError);
}

TEST(Interleaved, OrderOfTwoStages) {
  EXPECT_EQ(letters(interleaved(2, 0, 2, 4)),
            "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3");
  EXPECT_EQ(letters(interleaved(2, 1, 2, 4)),
            "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3");
}

TEST(Interleaved, MessagesGoRoundTheRing) {
  for (const Step& step : interleaved(3, 2, 2, 3)) {
    const bool forward = step.kind == StepKind::forward;
    const int after = step.chunk == 0 ? 0 : kNoStage;
    EXPECT_EQ(step.receive_from, forward ? 1 : after);
    EXPECT_EQ(step.send_to, forward ? after : 1);
  }
  for (const Step& step : interleaved(3, 0, 2, 3)) {
    const int before = step.chunk == 1 ? 2 : kNoStage;
    EXPECT_EQ(step.kind == StepKind::forward ? step.receive_from : step.send_to, before);
  }
}

TEST(Interleaved, RefusesBrokenGroups) {
  EXPECT_THROW(interleaved(4, 0, 2, 6), InternalError);
  EXPECT_THROW(interleaved(4, 0, 0, 8), InternalError);
}

TEST(ZeroBubble, OrderOfThreeStages) {
  EXPECT_EQ(letters(zero_bubble(3, 0, 4)), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  EXPECT_EQ(letters(zero_bubble(3, 1, 4)), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
  EXPECT_EQ(letters(zero_bubble(3, 2, 4)), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
}

TEST(ZeroBubble, WeightGradientsExchangeNothing) {
  for (const Step& step : zero_bubble(3, 1, 4)) {
    const bool alone = step.kind == StepKind::weight_gradient;
    EXPECT_EQ(step.receives(), !alone);
    EXPECT_EQ(step.sends(), !alone);
  }
}

TEST(MakeSchedule, KnowsEveryKind) {
  EXPECT_EQ(make_schedule({.stages = 4, .micro_batches = 8}, 1), one_f_one_b(4, 1, 8));
  EXPECT_EQ(make_schedule({ScheduleKind::interleaved, 4, 3, 8}, 1), interleaved(4, 1, 3, 8));
  EXPECT_EQ(make_schedule({ScheduleKind::zero_bubble, 4, 1, 8}, 1), zero_bubble(4, 1, 8));
  EXPECT_THROW(make_schedule({ScheduleKind::zero_bubble, 4, 2, 8}, 1), InternalError);
}

// The head keeps what it needs of one micro-batch only; and the gradients of a chunk are complete
// once those of all later ones are.
TEST(MakeSchedule, KeepsWhatTheModelCountsOn) {
  for (int stages = 1; stages <= 6; ++stages)
    for (const PipelineShape& shape :
         {PipelineShape{ScheduleKind::one_f_one_b, stages, 1, 7},
          PipelineShape{ScheduleKind::interleaved, stages, 1, 2 * stages},
          PipelineShape{ScheduleKind::interleaved, stages, 3, 3 * stages},
          PipelineShape{ScheduleKind::zero_bubble, stages, 1, 9}}) {
      for (int stage = 0; stage < stages; ++stage) {
        const StageSchedule steps = make_schedule(shape, stage);
        int last_finished = shape.chunks;
        std::vector<int> left(shape.chunks, shape.micro_batches);
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const bool head = stage == stages - 1 && steps[i].chunk == shape.chunks - 1;
          if (head && steps[i].kind == StepKind::forward) {
            ASSERT_LT(i + 1, steps.size());
            EXPECT_TRUE(steps[i + 1].passes_gradient());
            EXPECT_EQ(steps[i + 1].micro_batch, steps[i].micro_batch);
            EXPECT_EQ(steps[i + 1].chunk, steps[i].chunk);
          }
          const bool ends =
              steps[i].kind == StepKind::backward || steps[i].kind == StepKind::weight_gradient;
          if (ends && --left[steps[i].chunk] == 0) {
            EXPECT_EQ(steps[i].chunk, --last_finished);
          }
        }
        EXPECT_EQ(last_finished, 0);
      }
    }
}

TEST(ForwardOnly, TakesAnyNumberOfMicroBatches) {
  EXPECT_EQ(letters(forward_only(2, 1, 1, 3, 2)), "F0 F1 F2");
  EXPECT_EQ(letters(forward_only(2, 0, 2, 3, 2)), "F0 F1 F0' F1' F2 F2'");
  int number = 0;
  for (const Step& step : forward_only(2, 0, 2, 3, 2)) EXPECT_EQ(step.slot, number++ % 2);
}

TEST(Step, NamesItself) {
  EXPECT_EQ(to_string(Step{.kind = StepKind::backward, .micro_batch = 3}),
            "backward of micro-batch 3");
  EXPECT_EQ(to_string(Step{.kind = StepKind::forward, .micro_batch = 0, .chunk = 2}),
            "forward of micro-batch 0 in chunk 2");
  EXPECT_EQ(to_string(Step{.kind = StepKind::input_gradient}), "input gradient of micro-batch 0");
  EXPECT_EQ(to_string(Step{.kind = StepKind::weight_gradient}), "weight gradient of micro-batch 0");
}

}  // namespace
}  // namespace trireme::pipeline
