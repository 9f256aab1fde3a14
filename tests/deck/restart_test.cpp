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

}  // namespace
}  // namespace trireme::deck
