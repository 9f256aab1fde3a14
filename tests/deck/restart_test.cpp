#include "deck/restart.hpp"

#include <gtest/gtest.h>

#include "decks.hpp"

namespace trireme::deck {
namespace {

TEST(Restart, TheSameDeckHasNoChanges) {
  const auto changes = compare_for_restart(small_deck(), small_deck());
  EXPECT_TRUE(changes.empty());
  EXPECT_NO_THROW(refuse_fixed_changes(changes));
}

TEST(Restart, ChangesCarryBothValuesAndTheRule) {
  const auto changes = compare_for_restart(
      small_deck(), small_deck({"checkpoint.keep=2", "parallel.tensor=2", "model.vocab=100",
                                "model.layernorm_eps=1e-6"}));
  ASSERT_EQ(changes.size(), 4u);
  // Unset is the tokenizer's size, which may be the same; loading refuses another size.
  EXPECT_EQ(describe(changes[0]), "model.vocab: not set in the checkpoint, 100 now");
  EXPECT_EQ(changes[0].rule, RestartRule::noted);
  EXPECT_EQ(describe(changes[1]), "model.layernorm_eps: 1e-05 in the checkpoint, 1e-06 now");
  EXPECT_EQ(changes[1].rule, RestartRule::fixed);
  EXPECT_EQ(describe(changes[2]), "parallel.tensor: 1 in the checkpoint, 2 now");
  EXPECT_EQ(changes[2].rule, RestartRule::noted);
  EXPECT_EQ(describe(changes[3]), "checkpoint.keep: all in the checkpoint, 2 now");
  EXPECT_EQ(changes[3].rule, RestartRule::free);
}

TEST(Restart, RecomputationIsNotedAndAllowed) {
  const auto changes =
      compare_for_restart(small_deck(), small_deck({"recompute.granularity=full"}));
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(describe(changes[0]), "recompute.granularity: none in the checkpoint, full now");
  EXPECT_EQ(describe(changes[1]), "recompute.method: not set in the checkpoint, uniform now");
  EXPECT_EQ(describe(changes[2]), "recompute.layers: not set in the checkpoint, 1 now");
  for (const Change& change : changes) EXPECT_EQ(change.rule, RestartRule::noted);
}

TEST(Restart, ALongerRunIsNotedAndAllowed) {
  const auto changes = compare_for_restart(small_deck(), small_deck({"train.iterations=200"}));
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(describe(changes[0]),
            "schedule.decay: 100 iterations in the checkpoint, 200 iterations now");
  EXPECT_EQ(describe(changes[1]), "train.iterations: 100 in the checkpoint, 200 now");
  EXPECT_NO_THROW(refuse_fixed_changes(changes));
}

TEST(Restart, FixedKeysAreRefusedTogether) {
  const auto changes = compare_for_restart(
      small_deck(), small_deck({"run.seed=5", "model.layers=6", "log.every=1"}));
  try {
    refuse_fixed_changes(changes);
    FAIL() << "a fixed key was changed";
  } catch (const DeckError& error) {
    EXPECT_STREQ(
        error.what(),
        "run.seed = 5, but the checkpoint was written with 1234; a restart must not change it\n"
        "model.layers = 6, but the checkpoint was written with 4; a restart must not change it\n"
        "data.seed = 5, but the checkpoint was written with 1234; a restart must not change it\n"
        "3 errors; nothing was started. 'trireme-pretrain --help deck' lists every key.");
  }
}

// What compare_for_restart says of the key `path`: its rule, and the reason if there is one.
std::string judgement_of(const std::string& path, const std::vector<std::string>& before,
                         const std::vector<std::string>& after) {
  for (const Change& change : compare_for_restart(small_deck(before), small_deck(after)))
    if (change.key == path) return std::string(name_of(change.rule)) + " " + change.reason;
  return "no change";
}

TEST(Restart, DatasetsOfTheirOwnMustNotChangeTheTrainingPart) {
  // The part that gets datasets of its own leaves its share to the training part.
  EXPECT_EQ(judgement_of("data.valid", {}, {"data.valid=held_out"}),
            "fixed the run would train on 99.8969 % of the documents of data.train, not on 96.9 % "
            "(try data.split = 969,0,31, or a new run)");
  EXPECT_EQ(judgement_of("data.valid", {"data.valid=held_out"}, {}),
            "fixed the run would train on 96.9 % of the documents of data.train, not on 99.8969 % "
            "(try data.split = 969,0,1, or a new run)");
  EXPECT_EQ(judgement_of("data.test", {}, {"data.test=held_out"}),
            "fixed the run would train on 96.997 % of the documents of data.train, not on 96.9 % "
            "(try data.split = 969,31,0, or a new run)");
  EXPECT_EQ(judgement_of("data.test", {"data.valid=a"}, {"data.valid=a", "data.test=b"}),
            "fixed the run would train on 100 % of the documents of data.train, not on 99.8969 % "
            "(try a new run)");
  try {
    refuse_fixed_changes(compare_for_restart(small_deck(), small_deck({"data.valid=held_out"})));
    FAIL() << "the training part was changed";
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("data.valid = held_out, but the checkpoint was written with not set; a "
                        "restart must not change it: the run would train on 99.8969 %"),
              std::string::npos)
        << error.what();
  }
}

TEST(Restart, WhatLeavesTheTrainingPartIsNoted) {
  const std::string noted = "noted ";
  EXPECT_EQ(judgement_of("data.valid", {"data.valid=a"}, {"data.valid=b"}), noted);
  EXPECT_EQ(judgement_of("data.valid", {"data.split=1"}, {"data.split=1", "data.valid=b"}), noted);
  EXPECT_EQ(judgement_of("data.test", {"data.split=90,10"}, {"data.split=90,10", "data.test=b"}),
            noted);
  for (const char* path : {"data.valid", "data.split"})
    EXPECT_EQ(judgement_of(path, {}, {"data.valid=held_out", "data.split=969,0,31"}), noted);
  EXPECT_EQ(judgement_of("data.split", {"data.split=90,10,0"}, {"data.split=90,5,5"}), noted);
  // Only the key that is to blame is refused.
  const std::vector<std::string> before{"data.valid=a"}, after{"data.valid=b", "data.split=8,1,1"};
  EXPECT_EQ(judgement_of("data.valid", before, after), noted);
  EXPECT_EQ(judgement_of("data.split", before, after),
            "fixed the run would train on 88.8889 % of the documents of data.train, not on 99.8969 "
            "% (try data.split = 969,0,1, or a new run)");
}

}  // namespace
}  // namespace trireme::deck
