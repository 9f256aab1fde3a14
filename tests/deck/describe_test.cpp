#include "deck/load.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "deck/keys/schema.hpp"
#include "decks.hpp"

namespace trireme::deck {
namespace {

void expect_round_trip(const Deck& deck) {
  const std::string text = print_deck(deck);
  const Deck back = parse(text, "printed.yaml");
  EXPECT_TRUE(back == deck) << text;
  EXPECT_EQ(print_deck(back), text);
}

TEST(PrintDeck, ReadsBackToTheSameDeck) {
  expect_round_trip(small_deck());
  expect_round_trip(small_deck({"run.name=\"a: 'b' \\\"c\\\" \\\\ #\"",
                                "run.output=null/ü x",
                                "run.seed=4294967295",
                                "model.vocab=50257",
                                "model.init_std=0.1234567890123456",
                                "parallel.pipeline=4",
                                "parallel.partition=0-3-1-0",
                                "parallel.data=2",
                                "schedule.warmup=0.01",
                                "schedule.type=linear",
                                "schedule.dialect=v1",
                                "data.split=[0.8, 0.15, 0.05]",
                                "data.train=[0.25, a b, 0.75, \"3\"]",
                                "data.valid=[x, ./y]",
                                "data.corpora={\"3\": \"it's: {x}\", wiki: w}",
                                "train.iterations=",
                                "train.samples=1.5e9",
                                "train.exit_duration=90 minutes",
                                "train.kill_switch=/tmp/stop",
                                "evaluate.tasks=[{name: lambada, file: a b.jsonl, every: 10}, "
                                "{name: blimp, file: x.jsonl}]",
                                "evaluate.every=2000 iterations",
                                "checkpoint.every=2000 iterations",
                                "checkpoint.keep=3",
                                "checkpoint.keep_every=64000 samples",
                                "checkpoint.load=\"null\"",
                                "log.memory=false"}));
}

TEST(PrintDeck, MarksDefaultsAndWhatIsNotSet) {
  const std::string text = print_deck(small_deck({"optimizer.beta2=0.95"}));
  for (const std::string line :
       {"\n  layers: 4\n", "\n  ffn: 256  # default\n", "\n  # vocab: not set\n",
        "\n    attention: 0.1  # default\n", "\n  beta1: 0.9  # default\n", "\n  beta2: 0.95\n",
        "\n  data: auto  # default\n", "\n  keep: all  # default\n",
        "\n  decay: 100 iterations  # default\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.find("bert"), std::string::npos) << "a key of another family was printed";
}

TEST(Help, CoversEveryKey) {
  const std::string all = help("deck");
  for (const Key& key : keys()) {
    EXPECT_FALSE(key.help.empty()) << key.path;
    EXPECT_NE(all.find(key.path + " "), std::string::npos) << key.path;
    const std::string text = help("deck." + key.path);
    std::string first = text.substr(0, text.find("\n  type"));
    for (std::size_t at; (at = first.find("\n ")) != std::string::npos;) first.erase(at, 2);
    EXPECT_EQ(first, key.path + ": " + key.help) << text;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100) << line;
    EXPECT_NE(text.find("\n  default  "), std::string::npos) << text;
  }
}

TEST(Help, SaysAllOfAKey) {
  EXPECT_EQ(help("deck.parallel.schedule"),
            "parallel.schedule: Order of forward and backward passes in the pipeline.\n"
            "  type     choice\n"
            "  default  1f1b\n"
            "  allowed  1f1b, interleaved, zero-bubble\n"
            "  restart  may change it, with a warning\n");
  EXPECT_EQ(help("deck.model.hidden"),
            "model.hidden: Width of the residual stream; on GPUs at most 16384.\n"
            "  type     whole number\n"
            "  default  required\n"
            "  range    from 1 to 1048576\n"
            "  restart  must not change it\n");
  EXPECT_EQ(help("deck.train.exit_duration"),
            "train.exit_duration: Stop, with a checkpoint, after this time.\n"
            "  type     number with a unit\n"
            "  default  not set\n"
            "  range    above 0\n"
            "  unit     seconds, minutes, hours\n"
            "  restart  may change it\n");
  EXPECT_EQ(help("deck.log.trace.iterations"),
            "log.trace.iterations: Iterations whose timeline is recorded, to <run>/trace.json.\n"
            "  type     list of A-B\n"
            "  default  not set\n"
            "  range    from 1 to 1000000000000\n"
            "  unit     iterations\n"
            "  restart  may change it\n");
}

TEST(Help, ListsASection) {
  EXPECT_EQ(help("deck.model.dropout"),
            "model.dropout.attention          Dropout of attention probabilities. (0.1; 0 for "
            "llama)\n"
            "model.dropout.hidden             Dropout of embeddings and of each block's outputs. "
            "(0.1; 0 for\n"
            "                                 llama)\n");
}

TEST(Help, FindsKeysByAnyName) {
  EXPECT_EQ(help("grad accumulation").rfind("grad_accumulation is 'batch.global' here (", 0), 0);
  EXPECT_EQ(help("lr").rfind("lr is 'schedule.peak' here.\n\nschedule.peak: ", 0), 0);
  EXPECT_EQ(help("fsdp").rfind("fsdp is 'parallel.zero' here (stage 3 shards weights).\n\n", 0), 0);
  EXPECT_EQ(help("activation checkpointing").rfind("activation_checkpointing is 'recompute.g", 0),
            0);
  EXPECT_EQ(help("wandb").rfind("wandb: not supported: metrics.jsonl", 0), 0);
  EXPECT_EQ(help("flash").rfind("flash: attention is always", 0), 0);
  EXPECT_EQ(help("model.layers"), help("deck.model.layers"));
  EXPECT_NE(help("overflow").find("precision.loss_scale.hysteresis "), std::string::npos);
  EXPECT_NE(help("checkpointing").find("recompute.granularity "), std::string::npos);
  EXPECT_EQ(help("cosine").rfind("schedule.type=cosine             ", 0), 0);
  EXPECT_EQ(help("bfloat16").rfind("precision.compute=bf16           ", 0), 0);
  EXPECT_EQ(help("swiglu").rfind("model.activation=swiglu          ", 0), 0);
  EXPECT_EQ(help("mixtral").rfind("mixtral: not supported: models are dense", 0), 0);
  EXPECT_EQ(help("eval").find("precision."), std::string::npos) << "only words that begin with it";
  EXPECT_THROW(help("frobnicate"), UsageError);
  EXPECT_THROW(help("x"), UsageError);
}

TEST(Help, FitsInto100Columns) {
  for (const char* topic : {"deck", "deck.sweep", "norm"}) {
    std::istringstream lines(help(topic));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100) << line;
  }
}

TEST(Help, SuggestsATopic) {
  try {
    help("deck.schedule.tpe");
    FAIL() << "help on an unknown key";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "the deck has no section or key 'schedule.tpe' — did you mean 'type'?");
  }
}

TEST(Keys, HaveUniquePathsAndGoodDefaults) {
  for (std::size_t i = 0; i < keys().size(); ++i) {
    const Key& key = keys()[i];
    EXPECT_EQ(find_key(key.path), &key);
    EXPECT_FALSE(is_section(key.path)) << key.path << " is a key and a section";
    if (!key.has_member() || key.fallback.empty()) continue;
    EXPECT_EQ(errors_of(kSmallDeck, {key.path + "=" + key.fallback}), "");
  }
}

TEST(Restart, TheSameDeckHasNoChanges) {
  const auto changes = compare_for_restart(small_deck(), small_deck());
  EXPECT_TRUE(changes.empty());
  EXPECT_NO_THROW(refuse_immutable_changes(changes));
}

TEST(Restart, ChangesCarryBothValuesAndTheRule) {
  const auto changes = compare_for_restart(
      small_deck(), small_deck({"checkpoint.keep=2", "parallel.tensor=2", "model.vocab=100",
                                "model.layernorm_eps=1e-6"}));
  ASSERT_EQ(changes.size(), 4u);
  // Unset is the tokenizer's size, which may be the same.
  EXPECT_EQ(describe(changes[0]), "model.vocab: not set in the checkpoint, 100 now");
  EXPECT_EQ(changes[0].rule, RestartRule::warn);
  EXPECT_EQ(describe(changes[1]), "model.layernorm_eps: 1e-05 in the checkpoint, 1e-06 now");
  EXPECT_EQ(changes[1].rule, RestartRule::immutable);
  EXPECT_EQ(describe(changes[2]), "parallel.tensor: 1 in the checkpoint, 2 now");
  EXPECT_EQ(changes[2].rule, RestartRule::warn);
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
  for (const Change& change : changes) EXPECT_EQ(change.rule, RestartRule::warn);
}

TEST(Restart, ALongerRunIsNotedAndAllowed) {
  const auto changes = compare_for_restart(small_deck(), small_deck({"train.iterations=200"}));
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(describe(changes[0]),
            "schedule.decay: 100 iterations in the checkpoint, 200 iterations now");
  EXPECT_EQ(describe(changes[1]), "train.iterations: 100 in the checkpoint, 200 now");
  EXPECT_NO_THROW(refuse_immutable_changes(changes));
}

TEST(Restart, FixedKeysAreRefusedTogether) {
  const auto changes = compare_for_restart(
      small_deck(), small_deck({"run.seed=5", "model.layers=6", "log.every=1"}));
  try {
    refuse_immutable_changes(changes);
    FAIL() << "an immutable key was changed";
  } catch (const DeckError& error) {
    EXPECT_STREQ(error.what(),
                 "run.seed = 5, but the checkpoint was written with 1234; it must stay that\n"
                 "model.layers = 6, but the checkpoint was written with 4; it must stay that\n"
                 "data.seed = 5, but the checkpoint was written with 1234; it must stay that\n"
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

TEST(Restart, ACheckpointFitsOneVocabularySize) {
  EXPECT_EQ(judgement_of("model.vocab", {"model.vocab=100"}, {"model.vocab=101"}), "immutable ");
  EXPECT_EQ(judgement_of("model.vocab", {"model.vocab=100"}, {}), "warn ");
}

TEST(Restart, DatasetsOfTheirOwnMustNotChangeTheTrainingPart) {
  // The part that gets its own datasets leaves its share to the training part.
  EXPECT_EQ(
      judgement_of("data.valid", {}, {"data.valid=held_out"}),
      "immutable the run would train on 99.8969 % of the documents of data.train, not on 96.9 % "
      "(try data.split = 969,0,31, or a new run)");
  EXPECT_EQ(
      judgement_of("data.valid", {"data.valid=held_out"}, {}),
      "immutable the run would train on 96.9 % of the documents of data.train, not on 99.8969 % "
      "(try data.split = 969,0,1, or a new run)");
  EXPECT_EQ(
      judgement_of("data.test", {}, {"data.test=held_out"}),
      "immutable the run would train on 96.997 % of the documents of data.train, not on 96.9 % "
      "(try data.split = 969,31,0, or a new run)");
  EXPECT_EQ(
      judgement_of("data.test", {"data.valid=a"}, {"data.valid=a", "data.test=b"}),
      "immutable the run would train on 100 % of the documents of data.train, not on 99.8969 % "
      "(try a new run)");
  try {
    refuse_immutable_changes(
        compare_for_restart(small_deck(), small_deck({"data.valid=held_out"})));
    FAIL() << "the training part was changed";
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("data.valid = held_out, but the checkpoint was written with not set; "
                        "it must stay that: the run would train on 99.8969 %"),
              std::string::npos)
        << error.what();
  }
}

TEST(Restart, WhatLeavesTheTrainingPartIsNoted) {
  const std::string warn = "warn ";
  EXPECT_EQ(judgement_of("data.valid", {"data.valid=a"}, {"data.valid=b"}), warn);
  EXPECT_EQ(judgement_of("data.valid", {"data.split=1"}, {"data.split=1", "data.valid=b"}), warn);
  EXPECT_EQ(judgement_of("data.test", {"data.split=90,10"}, {"data.split=90,10", "data.test=b"}),
            warn);
  for (const char* path : {"data.valid", "data.split"})
    EXPECT_EQ(judgement_of(path, {}, {"data.valid=held_out", "data.split=969,0,31"}), warn);
  EXPECT_EQ(judgement_of("data.split", {"data.split=90,10,0"}, {"data.split=90,5,5"}), warn);
  // Only the key that is to blame is refused.
  const std::vector<std::string> before{"data.valid=a"}, after{"data.valid=b", "data.split=8,1,1"};
  EXPECT_EQ(judgement_of("data.valid", before, after), warn);
  EXPECT_EQ(
      judgement_of("data.split", before, after),
      "immutable the run would train on 88.8889 % of the documents of data.train, not on 99.8969 "
      "% (try data.split = 969,0,1, or a new run)");
}

}  // namespace

}  // namespace trireme::deck
