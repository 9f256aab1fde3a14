#include "train/trainer.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "decks.hpp"

namespace trireme::train {
namespace {

/// What is asked for from `now` to iteration 100, with batches of 4, where there are checkpoints of
/// `steps`.
int most(std::vector<std::string> overrides, std::int64_t now = 0,
         const std::vector<std::int64_t>& steps = {}) {
  const deck::Deck deck = tiny_deck("run", overrides);
  const auto replaced = std::ranges::count_if(steps, [&](std::int64_t step) {
    return !is_milestone(deck, {step, checkpoint::step_path("run", step)});
  });
  return max_new_checkpoints(deck, {now, 4 * now}, {100, 400}, replaced);
}

TEST(KeptCheckpoints, OneMoreThanIsKeptWhileTheNewOneIsWritten) {
  EXPECT_EQ(most({"checkpoint.every=10", "checkpoint.keep=3"}), 4);
  EXPECT_EQ(most({"checkpoint.every=10", "checkpoint.keep=3"}, 10, {10}), 3);
  EXPECT_EQ(most({"checkpoint.every=10", "checkpoint.keep=3"}, 30, {10, 20, 30}), 1);
  EXPECT_EQ(most({"checkpoint.every=10", "checkpoint.keep=1"}, 30, {10, 20, 30}), 1);
  EXPECT_EQ(most({"checkpoint.every=40 samples", "checkpoint.keep=3"}), 4);
}

TEST(KeptCheckpoints, NoMoreThanAreStillToCome) {
  EXPECT_EQ(most({"checkpoint.keep=3"}), 1);
  EXPECT_EQ(most({"checkpoint.every=50", "checkpoint.keep=3"}), 2);
  EXPECT_EQ(most({"checkpoint.every=30", "checkpoint.keep=9"}), 4);  // with the one at the end
  EXPECT_EQ(most({"checkpoint.every=30", "checkpoint.keep=9", "checkpoint.at_end=false"}), 3);
  EXPECT_EQ(most({"checkpoint.every=30", "checkpoint.keep=9"}, 70, {30}), 2);
  EXPECT_EQ(most({"checkpoint.every=1", "checkpoint.keep=1000000"}), 64);
}

TEST(KeptCheckpoints, MilestonesMakeNoRoom) {
  const std::vector<std::string> words = {"checkpoint.every=10", "checkpoint.keep=2",
                                          "checkpoint.keep_every=40"};
  EXPECT_EQ(most(words, 50, {40, 50}), 2);
  EXPECT_EQ(most(words, 60, {40, 50, 60}), 1);
}

TEST(KeptCheckpoints, WhatCannotBeReadMayBeAMilestone) {
  const auto is_kept = [](const std::string& every) {
    return is_milestone(tiny_deck("run", {"checkpoint.every=10", "checkpoint.keep=2",
                                          "checkpoint.keep_every=" + every}),
                        {50, "run/absent.h5"});
  };
  EXPECT_TRUE(is_kept("160 samples"));
  EXPECT_FALSE(is_kept("40"));
}

TEST(KeptCheckpoints, OneWhereAllAreKept) { EXPECT_EQ(most({"checkpoint.every=10"}), 1); }

}  // namespace
}  // namespace trireme::train
