#include "train/run_state.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "train/stop.hpp"

namespace trireme::train {
namespace {

TEST(RunState, ComesBackFromACheckpoint) {
  const RunState state{.iteration = 12,
                       .consumed_samples = 96,
                       .applied_iterations = 10,
                       .applied_samples = 80,
                       .skipped = 2,
                       .nan = 1,
                       .bad_iterations = 1,
                       .loss_scale = {2048, 7, 1},
                       .passed_samples = 24,
                       .passed_through = 7,
                       .train_documents = "00c0ffee00c0ffee",
                       .train_tokens = "sample 00c0ffee00c0ffee"};
  checkpoint::Header header;
  header.attributes = state.attributes();
  const RunState back = RunState::from(header);
  EXPECT_EQ(back.iteration, 12);
  EXPECT_EQ(back.consumed_samples, 96);
  EXPECT_EQ(back.applied_iterations, 10);
  EXPECT_EQ(back.applied_samples, 80);
  EXPECT_EQ(back.skipped, 2);
  EXPECT_EQ(back.nan, 1);
  EXPECT_EQ(back.bad_iterations, 1);
  EXPECT_EQ(back.loss_scale, state.loss_scale);
  EXPECT_EQ(back.passed_samples, 24);
  EXPECT_EQ(back.passed_through, 7);
  EXPECT_EQ(back.train_documents, "00c0ffee00c0ffee");
  EXPECT_EQ(back.train_tokens, "sample 00c0ffee00c0ffee");
  EXPECT_EQ(back.progress(), (deck::Progress{12, 96}));
  EXPECT_EQ(back.next_sample(), 120);
}

TEST(RunState, OfACheckpointWithoutScalerHasAConstantScale) {
  checkpoint::Header header;
  header.attributes = RunState().attributes();
  header.attributes.erase("loss_scale_good_iterations");
  header.attributes.erase("loss_scale_hysteresis_left");
  EXPECT_EQ(RunState::from(header).loss_scale, optim::LossScaleState{});
}

TEST(RunState, CheckpointsFromBeforeThereWasTrainSkip) {
  checkpoint::Header header;
  header.attributes = RunState{.iteration = 3, .consumed_samples = 12}.attributes();
  header.attributes.erase("passed_samples");
  header.attributes.erase("passed_through");
  EXPECT_EQ(RunState::from(header).next_sample(), 12);
}

TEST(RunState, OfACheckpointThatNamesNoDocuments) {
  checkpoint::Header header;
  header.attributes = RunState{.iteration = 3, .consumed_samples = 12}.attributes();
  EXPECT_FALSE(header.attributes.contains("train_documents"));
  EXPECT_EQ(RunState::from(header).train_documents, "");
}

TEST(RunState, NamesAMissingAttribute) {
  for (const char* name : {"iteration", "consumed_samples", "applied_samples", "skipped"}) {
    checkpoint::Header header;
    header.attributes = RunState().attributes();
    header.attributes.erase(name);
    try {
      RunState::from(header);
      FAIL() << name;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

TEST(Stop, OnlyStopsThatNobodyAskedForAreQueuedAgain) {
  for (const StopReason reason :
       {StopReason::finished, StopReason::exit_interval, StopReason::kill_switch})
    EXPECT_EQ(exit_code(reason), ExitCode::success) << describe(reason);
  for (const StopReason reason :
       {StopReason::exit_duration, StopReason::time_limit, StopReason::signal})
    EXPECT_EQ(exit_code(reason), ExitCode::stopped_early) << describe(reason);
  EXPECT_EQ(exit_code(StopReason::diverged), ExitCode::diverged);
}

}  // namespace
}  // namespace trireme::train
