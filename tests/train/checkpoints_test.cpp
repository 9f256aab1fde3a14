#include "train/trainer.hpp"

#include <gtest/gtest.h>

#include "decks.hpp"

namespace trireme::train {
namespace {

/// What is asked for from `now` to iteration 100, with batches of 4, where there are checkpoints of
/// `steps`.
int most(std::vector<std::string> overrides, std::int64_t now = 0,
         const std::vector<std::int64_t>& steps = {}) {
  std::vector<checkpoint::Step> files;
  for (const std::int64_t step : steps) files.push_back({step, checkpoint::step_path("run", step)});
  return max_new_checkpoints(tiny_deck("run", overrides), {now, 4 * now}, {100, 400}, files);
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

TEST(KeptCheckpoints, OneWhereAllAreKept) { EXPECT_EQ(most({"checkpoint.every=10"}), 1); }

}  // namespace
}  // namespace trireme::train
