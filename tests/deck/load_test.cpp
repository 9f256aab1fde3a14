#include "deck/load.hpp"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <random>

#include "../scratch_folder.hpp"
#include "deck/sweep/sweep.hpp"
#include "deck/value.hpp"
#include "decks.hpp"

namespace trireme::deck {
namespace {

TEST(Load, FillsInDefaults) {
  const Deck deck = small_deck();
  EXPECT_EQ(deck.run.name, "small");
  EXPECT_EQ(deck.run.output, "runs/small");
  EXPECT_EQ(deck.run.seed, 1234);
  EXPECT_EQ(deck.run.device, Device::host);
  EXPECT_EQ(deck.model.ffn, 256);
  EXPECT_EQ(deck.model.positions, 32);
  EXPECT_EQ(deck.model.vocab, std::nullopt);
  EXPECT_EQ(deck.model.dropout.attention, 0.1);
  EXPECT_EQ(deck.model.layernorm_eps, 1e-5);
  EXPECT_TRUE(deck.model.tie_embeddings);
  EXPECT_EQ(deck.parallel.tensor, 1);
  EXPECT_EQ(deck.parallel.data, std::nullopt);
  EXPECT_EQ(deck.parallel.partition, std::nullopt);
  EXPECT_EQ(deck.parallel.zero, 1);
  EXPECT_EQ(deck.parallel.bucket, 25'000'000);
  EXPECT_EQ(deck.optimizer.beta2, 0.999);
  EXPECT_EQ(deck.optimizer.clip, 1);
  EXPECT_EQ(deck.schedule.type, ScheduleType::cosine);
  EXPECT_EQ(deck.schedule.warmup, (Length{0, Unit::iterations}));
  EXPECT_EQ(deck.schedule.decay, (Length{100, Unit::iterations}));
  EXPECT_EQ(deck.data.train, (Datasets{.names = {"corpus_text_document"}}));
  EXPECT_EQ(deck.data.valid, std::nullopt);
  EXPECT_EQ(deck.data.split, (std::vector<double>{969, 30, 1}));
  EXPECT_EQ(deck.data.seed, 1234);
  EXPECT_EQ(deck.data.tokenizer.type, TokenizerType::sentencepiece);
  EXPECT_TRUE(deck.evaluate.at_end);
  EXPECT_EQ(deck.checkpoint.keep, std::nullopt);
  EXPECT_EQ(deck.log.every, 10);
}

TEST(Load, DefaultsFollowOtherKeys) {
  const Deck deck = small_deck({"run.seed=7", "run.name=x", "model.hidden=128", "data.split=1"});
  EXPECT_EQ(deck.data.seed, 7);
  EXPECT_EQ(deck.run.output, "runs/x");
  EXPECT_EQ(deck.model.ffn, 512);
  EXPECT_FALSE(deck.evaluate.at_end);
  EXPECT_TRUE(small_deck({"data.split=1", "data.valid=other"}).evaluate.at_end);
  EXPECT_TRUE(small_deck({"data.split=1", "data.test=other"}).evaluate.at_end);
  EXPECT_TRUE(small_deck({"data.split=8,0,2"}).evaluate.at_end);
}

TEST(Load, DatasetsAreOneOrSeveral) {
  const auto train = [](const std::string& value) {
    return *small_deck({"data.train=" + value}).data.train;
  };
  EXPECT_EQ(train("a"), (Datasets{{"a"}, {}}));
  EXPECT_EQ(train("7"), (Datasets{{"7"}, {}}));
  EXPECT_EQ(train("[a, b]"), (Datasets{{"a", "b"}, {}}));
  EXPECT_EQ(train("[1_0, a, .5, \"7\"]"), (Datasets{{"a", "7"}, {10, 0.5}}));
  EXPECT_EQ(train("[1, a]"), (Datasets{{"a"}, {1}}));
  const Deck deck = small_deck({"data.corpora={wiki: data/wiki, \"7\": b c}"});
  EXPECT_EQ(deck.data.corpora->prefixes.at("wiki"), "data/wiki");
  EXPECT_EQ(deck.data.corpora->prefixes.at("7"), "b c");
}

TEST(Load, APartWithItsOwnDatasetsHasNoneInTheOthers) {
  EXPECT_EQ(effective_split(small_deck()), (std::vector<double>{969, 30, 1}));
  EXPECT_EQ(effective_split(small_deck({"data.valid=v"})), (std::vector<double>{969, 0, 1}));
  EXPECT_EQ(effective_split(small_deck({"data.valid=v", "data.test=t", "data.split=8,2"})),
            (std::vector<double>{8, 0}));
}

TEST(Load, NumbersMayBeWrittenInSeveralWays) {
  EXPECT_EQ(small_deck({"parallel.bucket=1.5e9"}).parallel.bucket, 1'500'000'000);
  EXPECT_EQ(small_deck({"parallel.bucket=1_000"}).parallel.bucket, 1000);
  EXPECT_EQ(small_deck({"parallel.bucket=1200e-2"}).parallel.bucket, 12);
  EXPECT_EQ(small_deck({"parallel.bucket=+5"}).parallel.bucket, 5);
  EXPECT_EQ(small_deck({"schedule.peak=.5"}).schedule.peak, 0.5);
  EXPECT_EQ(small_deck({"schedule.peak=1_0.2_5E-1"}).schedule.peak, 1.025);
}

TEST(Load, LengthsHaveUnits) {
  const Deck deck = small_deck({"schedule.warmup=0.25", "schedule.decay=1280 samples",
                                "train.exit_interval=50", "train.exit_duration=1.5 hours",
                                "checkpoint.every=1 iteration", "checkpoint.keep=2"});
  EXPECT_EQ(deck.schedule.warmup, (Length{0.25, Unit::fraction}));
  EXPECT_EQ(in_samples(deck.schedule.warmup, deck), 320);
  EXPECT_EQ(in_iterations(deck.schedule.warmup, deck), 20);
  EXPECT_EQ(in_samples(*deck.train.exit_interval, deck), 50 * 16);
  EXPECT_EQ(in_seconds(*deck.train.exit_duration), 5400);
  EXPECT_EQ(in_iterations(*deck.checkpoint.every, deck), 1);
  EXPECT_THROW(in_samples(*deck.train.exit_duration, deck), InternalError);
  EXPECT_THROW(in_seconds(*deck.checkpoint.every), InternalError);
}

TEST(Load, LengthsAreWrittenAsPeopleWriteThem) {
  const Deck deck =
      small_deck({"schedule.warmup=5%", "schedule.decay=1.28k samples",
                  "train.exit_interval=50steps", "train.exit_duration=90min", "checkpoint.every=2k",
                  "comm.timeout=1:30:00", "train.iterations=0.1k", "log.every=20"});
  EXPECT_EQ(deck.schedule.warmup, (Length{0.05, Unit::fraction}));
  EXPECT_EQ(deck.schedule.decay, (Length{1280, Unit::samples}));
  EXPECT_EQ(*deck.train.exit_interval, (Length{50, Unit::iterations}));
  EXPECT_EQ(in_seconds(*deck.train.exit_duration), 5400);
  EXPECT_EQ(*deck.checkpoint.every, (Length{2000, Unit::iterations}));
  EXPECT_EQ(in_seconds(deck.comm.timeout), 5400);
  EXPECT_EQ(total_iterations(deck), 100);
  EXPECT_EQ(in_seconds(small_deck({"comm.timeout=20s"}).comm.timeout), 20);
}

TEST(Load, BareLengthsCountWhatTrainCounts) {
  const Deck deck = small_deck({"train.iterations=", "train.samples=1_000", "evaluate.every=100"});
  EXPECT_EQ(*deck.evaluate.every, (Length{100, Unit::samples}));
  EXPECT_EQ(in_iterations(*deck.evaluate.every, deck), 7);
  EXPECT_EQ(deck.schedule.decay, (Length{1000, Unit::samples}));
  EXPECT_EQ(total_iterations(deck), 62);
  EXPECT_EQ(total_samples(deck), 62 * 16);
}

TEST(Load, PartitionsAreListsOrDashed) {
  const std::vector<std::int64_t> expected = {0, 2, 2, 0};
  for (const std::string text : {"0-2-2-0", "[0, 2, 2, 0]", "'0-2-2-0'"}) {
    const Deck deck = small_deck({"parallel.pipeline=4", "parallel.partition=" + text});
    EXPECT_EQ(layers_per_stage(deck), expected) << text;
  }
  EXPECT_EQ(layers_per_stage(small_deck({"parallel.pipeline=2"})),
            (std::vector<std::int64_t>{2, 2}));
}

TEST(Load, AutoPartitionsBalanceTheHead) {
  const auto partition = [](int layers, int stages, int vocab) {
    Deck deck = small_deck({});
    deck.model.layers = layers;
    deck.model.hidden = 1600;
    deck.model.ffn = 6400;
    deck.model.sequence = 1024;
    deck.model.vocab = vocab;
    deck.parallel.pipeline = stages;
    return layers_per_stage(deck);
  };
  using Layers = std::vector<std::int64_t>;
  // A head of GPT-2's vocabulary takes as many FLOPs as 2.5 of these blocks.
  EXPECT_EQ(partition(48, 5, 50257), (Layers{10, 10, 10, 10, 8}));
  EXPECT_EQ(partition(50, 4, 50257), (Layers{13, 13, 13, 11}));
  EXPECT_EQ(partition(5, 4, 200000), (Layers{1, 2, 2, 0}));
  EXPECT_EQ(partition(7, 3, 1), (Layers{2, 3, 2}));
  EXPECT_EQ(partition(48, 4, 50257), (Layers{12, 12, 12, 12}));  // what divides stays equal
}

TEST(Load, RangesThatOverlapBecomeOne) {
  const std::vector<IterationRange> expected = {{2, 2}, {4, 9}, {10, 12}};
  for (const std::string text :
       {"[4-7, 2-2, 6-9, 10-12]", "2-2,4-9,10-12", "[2-2, 4-9, 5-6, 10 - 12]"})
    EXPECT_EQ(small_deck({"train.skip=" + text}).train.skip, expected) << text;
  const Deck deck = small_deck({"train.skip=[4-7, 6-9]"});
  EXPECT_NE(print_deck(deck).find("skip: 4-9\n"), std::string::npos) << print_deck(deck);
  EXPECT_EQ(parse(print_deck(deck), "again.yaml"), deck);
  EXPECT_TRUE(small_deck().train.skip.empty());
}

TEST(Load, TheLastOverrideHoldsAndAnEmptyOneGivesTheDefault) {
  EXPECT_EQ(small_deck({"model.layers=2", "model.layers=6"}).model.layers, 6);
  EXPECT_EQ(small_deck({"run.seed=2", "run.seed="}).run.seed, 1234);
  EXPECT_EQ(small_deck({"model.dropout.hidden=0.5", "model.dropout="}).model.dropout.hidden, 0.1);
  const std::string all = kSmallDeck + "run: {seed: 5, name: a}\n";
  EXPECT_EQ(parse(all, "b.yaml", {"run="}).run, small_deck({"run.name=b"}).run);
  EXPECT_EQ(parse(all, "b.yaml", {"run=", "run.seed=7"}).run.seed, 7);
  EXPECT_EQ(errors_of(kSmallDeck, {"schedule="}),
            "--set schedule=: missing key 'schedule.peak': Largest learning rate." + kOneError);
  const Deck deck = small_deck({"model={layers: 2, dropout: {attention: 0}}"});
  EXPECT_EQ(deck.model.layers, 2);
  EXPECT_EQ(deck.model.dropout.attention, 0);
  EXPECT_EQ(deck.model.hidden, 64);
}

TEST(Load, TextInAnOverrideIsQuotedWhereYamlReadsSomethingElse) {
  for (const char* plain : {"runs/a=1,b=2", "runs/a b", "/tmp/it's", "runs/exp#3", "12"})
    EXPECT_EQ(text_override("run.output", plain), std::string("run.output=") + plain);
  EXPECT_EQ(text_override("run.output", "runs/exp #3"), "run.output=\"runs/exp #3\"");
  for (const char* text :
       {"runs/exp #3", "a: b", "- a", "[a, b]", "{a}", "\"a\" b", "'a'",     "null", " a", "a ",
        "a\\b",        "*a",   "&a",  "!a",     "# a", "--- a",   "\"a\\\"", "@a",   "|",  "?"})
    EXPECT_EQ(small_deck({text_override("run.output", text)}).run.output, text) << text;
  EXPECT_EQ(small_deck({text_override("run.name", "~")}).run.name, "~");
  // What YAML would read as a space stays what it is, and is refused.
  EXPECT_EQ(text_override("run.output", "a\n\nb"), "run.output=\"a\\x0a\\x0ab\"");
  EXPECT_THROW(small_deck({text_override("run.output", "a\nb")}), DeckError);
}

TEST(Load, AnOverrideReplacesABadValue) {
  EXPECT_EQ(parse(changed("layers: 4", "layers: four"), "a.yaml", {"model.layers=8"}).model.layers,
            8);
}

TEST(Load, EmptySectionsAreFine) {
  const Deck deck = parse(kSmallDeck + "log:\n  # every: 5\ncheckpoint:\n", "a.yaml");
  EXPECT_EQ(deck.log.every, 10);
}

TEST(Load, ReadsAFileAndNamesAMissingOne) {
  const ScratchFolder folder;
  const auto path = folder.path() / "tiny-run.yaml";
  std::ofstream(path) << kSmallDeck;
  EXPECT_EQ(load(path).run.name, "tiny-run");
  std::filesystem::remove(path);
  try {
    load(path);
    FAIL() << "a missing deck was loaded";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
}

TEST(Load, ReadsNoFileThatIsTooLargeForADeck) {
  const ScratchFolder folder;
  const auto path = folder.path() / "dataset.yaml";
  std::ofstream(path) << kSmallDeck;
  std::filesystem::resize_file(path, std::uintmax_t{1} << 30);
  for (const std::filesystem::path& each : {path, std::filesystem::path("/dev/zero")}) {
    try {
      load(each);
      FAIL() << each << " was loaded";
    } catch (const DeckError& error) {
      EXPECT_EQ(error.what(), "'" + each.string() + "' is larger than 16 MiB: not a deck");
    }
  }
}

TEST(Load, RanksGiveTheNumberOfCopies) {
  Deck deck = small_deck({"parallel.tensor=2", "parallel.pipeline=2"});
  resolve_world_size(deck, 8);
  EXPECT_EQ(deck.parallel.data, 2);
}

#if defined(TRIREME_SANITIZED)
constexpr int kDecks = 2'000;
#else
constexpr int kDecks = 20'000;
#endif

constexpr std::array<std::string_view, 40> kPieces = {
    ":",    "\n",   "  ",   "- ",  "[",    "]",     "{",    "}",    ",",        "&a ",
    "*a",   "<<: ", "!!x ", "? ",  "| ",   ">\n",   "\"",   "'",    "#",        "%",
    "---",  "...",  "\t",   "~",   "null", "1e309", "-1",   ".nan", "010",      "1_0",
    "true", "auto", "0-1",  "\\x", "0.5",  "9e18",  "\x04", "\xff", "\xe2\x82", "\r"};

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string operator()(std::string text) {
    const std::size_t edits = 1 + below(6);
    for (std::size_t edit = 0; edit < edits; ++edit) {
      const std::size_t at = below(text.size() + 1);
      const std::size_t length = std::min(below(12), text.size() - at);
      switch (below(4)) {
        case 0:
          text.insert(at, kPieces[below(kPieces.size())]);
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(below(text.size() + 1), text.substr(at, 4 * length));
          break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(below(256));
      }
    }
    return text;
  }

 private:
  // Not std::uniform_int_distribution: its numbers differ between libraries.
  std::size_t below(std::size_t bound) { return random_() % bound; }

  std::mt19937 random_;
};

TEST(Fuzz, MutatedDecksNeverCrash) {
  Mutator mutate(20260);
  const std::array<std::string, 2> seeds = {kSmallDeck, print_deck(small_deck())};
  int good = 0;
  for (int i = 0; i < kDecks; ++i) {
    const std::string text = mutate(seeds[i % 2]);
    try {
      const Deck deck = parse(text, "fuzz.yaml");
      ++good;
      EXPECT_TRUE(parse(print_deck(deck), "fuzz.yaml") == deck) << text;
    } catch (const DeckError& error) {
      EXPECT_NE(std::string_view(error.what()).find("nothing was started"), std::string::npos);
    }
  }
  EXPECT_GT(good, kDecks / 50) << "too few mutated decks are good to test the good path";
  EXPECT_LT(good, kDecks) << "no mutated deck was bad";
}

TEST(Fuzz, MutatedOverridesNeverCrash) {
  Mutator mutate(7);
  for (int i = 0; i < kDecks / 10; ++i) {
    const std::string text = mutate("model.dropout={attention: 0.5, hidden: 0}");
    try {
      small_deck({text});
    } catch (const DeckError& error) {
      EXPECT_NE(std::string_view(error.what()).find("error"), std::string::npos);
    }
  }
}

TEST(Fuzz, MutatedSweepsNeverCrash) {
  Mutator mutate(11);
  const std::string section =
      "sweep:\n"
      "  schedule: {peak: [1e-4, 3e-4]}\n"
      "  run.seed: 1..3\n"
      "  optimizer.beta2: {from: 0.9, to: 0.99, step: 0.03}\n"
      "  zip: [{model.hidden: [64, 128], model.heads: [4, 8]}]\n"
      "  cases: {a: {parallel: {tensor: 2}}, b: ~}\n"
      "  file: runs.txt\n"
      "  launcher: mpirun -n {ranks}\n";
  int good = 0;
  for (int i = 0; i < kDecks / 4; ++i) {
    const bool in_file = i % 2 == 1;
    const std::string text = in_file ? section : mutate(section);
    const std::string lines = "log.every=1 data.train=[a, b]\n";
    try {
      const auto read = [&](const std::string&) { return in_file ? mutate(lines) : lines; };
      const Sweep sweep = expand_sweep(text, "fuzz.yaml", {}, read);
      ++good;
      ASSERT_FALSE(sweep.runs.empty());
    } catch (const DeckError& error) {
      EXPECT_NE(std::string_view(error.what()).find("nothing was started"), std::string::npos);
    }
  }
  EXPECT_GT(good, kDecks / 100) << "too few mutated sweeps are good to test the good path";
}

}  // namespace

}  // namespace trireme::deck
