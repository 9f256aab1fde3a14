#include "train/run_state.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.hpp"
#include "decks.hpp"

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
                       .spikes = {.losses = {3.5}, .norms = {0.25}, .skipped = 1},
                       .abandoned = 20,
                       .train_documents = "00c0ffee00c0ffee",
                       .train_tokens = "sample 00c0ffee00c0ffee",
                       .tokenizer = "bytes of 257 ids"};
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
  EXPECT_EQ(back.spikes, state.spikes);
  EXPECT_EQ(back.abandoned, 20);
  EXPECT_EQ(back.train_documents, "00c0ffee00c0ffee");
  EXPECT_EQ(back.train_tokens, "sample 00c0ffee00c0ffee");
  EXPECT_EQ(back.tokenizer, "bytes of 257 ids");
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

TEST(Stop, OnlyUnrequestedStopsAreRequeued) {
  for (const StopReason reason :
       {StopReason::finished, StopReason::exit_interval, StopReason::kill_switch})
    EXPECT_EQ(exit_code(reason), ExitCode::success) << describe(reason);
  for (const StopReason reason :
       {StopReason::exit_duration, StopReason::time_limit, StopReason::signal})
    EXPECT_EQ(exit_code(reason), ExitCode::stopped_early) << describe(reason);
  EXPECT_EQ(exit_code(StopReason::diverged), ExitCode::diverged);
}

deck::Deck skipping(const std::string& ranges, std::vector<std::string> overrides = {}) {
  overrides.push_back("train.skip=" + ranges);
  return tiny_deck("run", overrides);  // batches of 4
}

// Which batch of data each iteration takes until `last`, continuing from `state`.
std::vector<std::int64_t> batches_taken(const deck::Deck& deck, RunState& state,
                                        std::int64_t last) {
  std::vector<std::int64_t> batches;
  while (state.iteration < last) {
    if (const auto range = data_to_skip(deck, state)) skip_data(deck, *range, state);
    batches.push_back(state.next_sample() / 4 + 1);
    ++state.iteration;
    state.consumed_samples += 4;
  }
  return batches;
}

using Batches = std::vector<std::int64_t>;

TEST(DataSkip, IterationsTakeTheDataThatFollows) {
  RunState state;
  EXPECT_EQ(batches_taken(skipping("2-2,4-7"), state, 9),
            (Batches{1, 3, 4, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(state.passed_samples, 5 * 4);
  EXPECT_EQ(state.passed_through, 7);
  EXPECT_EQ(state.consumed_samples, 9 * 4);
}

TEST(DataSkip, RangesThatTouchAreTakenOneByOne) {
  RunState state;
  EXPECT_EQ(batches_taken(skipping("1-2,3-3"), state, 4), (Batches{3, 4, 6, 7}));
}

TEST(DataSkip, ARestartInsideARangeSkipsNothingTwice) {
  const deck::Deck deck = skipping("2-5");
  for (std::int64_t stop = 1; stop <= 6; ++stop) {
    RunState state;
    Batches batches = batches_taken(deck, state, stop);
    checkpoint::Header header;
    header.attributes = state.attributes();
    RunState again = RunState::from(header);
    for (const std::int64_t batch : batches_taken(deck, again, 8)) batches.push_back(batch);
    EXPECT_EQ(batches, (Batches{1, 6, 7, 8, 9, 10, 11, 12})) << "stopped after " << stop;
  }
}

TEST(DataSkip, ARangeThatIsNewOrLongerAfterARestartSkipsTheRest) {
  RunState fresh;
  EXPECT_EQ(batches_taken(skipping("90-91"), fresh, 3), (Batches{1, 2, 3}));
  EXPECT_EQ(batches_taken(skipping("2-5"), fresh, 5), (Batches{6, 7})) << "4 and 5 are left";
  EXPECT_EQ(batches_taken(skipping("2-8"), fresh, 7), (Batches{11, 12})) << "6 to 8 as well";
}

TEST(DataSkip, SizesAreThoseOfTheRampUp) {
  const deck::Deck deck =
      skipping("3-5", {"train.iterations=", "train.samples=400", "batch.global=8",
                       "batch.rampup.start=2", "batch.rampup.step=2", "batch.rampup.samples=24"});
  // Parts of 8 samples: 2 2 2 2 | 4 4 | 6 6 | 8 ...
  RunState state{.iteration = 2, .consumed_samples = 4};
  const auto range = data_to_skip(deck, state);
  ASSERT_TRUE(range);
  EXPECT_EQ(*range, (deck::IterationRange{3, 5}));
  EXPECT_EQ(samples_to_skip(deck, {}, 60), 2 + 2 + 4);
  EXPECT_EQ(skip_data(deck, *range, state), 2 + 2 + 4);
  EXPECT_EQ(state.next_sample(), 4 + 8);
  EXPECT_EQ(state.consumed_samples, 4) << "the ramp continues as without";
}

TEST(DataSkip, WhatWillBeSkippedIsKnownBefore) {
  const deck::Deck deck = skipping("2-5,10-12,99-150");
  EXPECT_EQ(samples_to_skip(deck, {}, 100), (4 + 3 + 52) * 4);
  EXPECT_EQ(samples_to_skip(deck, {}, 9), 4 * 4);
  EXPECT_EQ(samples_to_skip(deck, {.iteration = 3, .consumed_samples = 12}, 9), 2 * 4);
  RunState state;
  batches_taken(deck, state, 4);
  EXPECT_EQ(samples_to_skip(deck, state, 100), (3 + 52) * 4);
  EXPECT_EQ(samples_to_skip(skipping("100-100"), {.iteration = 100}, 100), 0);
}

}  // namespace
}  // namespace trireme::train
