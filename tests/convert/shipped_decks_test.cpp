// The decks of inputs/ and the scripts of their recipes: converted, a script differs from its deck
// in the keys that are named here, and in nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "convert/convert.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/deck.hpp"
#include "deck/load.hpp"
#include "deck/sweep/sweep.hpp"
#include "fixture.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = TRIREME_SOURCE_DIR;
const fs::path kRecipes = kSource / "tests/data/flags";
const deck::LoadOptions kNoData = {.need_data = false, .automatic = deck::Device::cuda};

deck::Deck deck_of(const Result& result) {
  return deck::parse(result.deck, "converted", {"model.vocab=50257"}, kNoData);
}

deck::Deck shipped(const std::string& name) {
  return deck::load(kSource / "inputs" / name, {"model.vocab=50257"}, kNoData);
}

using Keys = std::vector<std::string>;

/// The keys in which the deck of a script and a shipped one differ, without those of names and
/// places: run folder, dataset and vocabulary.
Keys differences(const deck::Deck& converted, const deck::Deck& shipped) {
  Keys keys;
  for (const deck::Change& change : deck::compare_for_restart(converted, shipped)) {
    const bool is_place = change.key.starts_with("run.name") || change.key == "run.output" ||
                          change.key == "data.train" || change.key == "data.corpora" ||
                          change.key == "data.tokenizer.vocab" ||
                          change.key == "data.tokenizer.merges";
    if (!is_place) keys.push_back(change.key);
  }
  return keys;
}

/// The keys among `keys` that the deck `name` has no line for which gives the recipe's value as the
/// reason of another one.
Keys unexplained(const std::string& name, Keys keys) {
  const std::string text = read_file(kSource / "inputs" / name);
  std::erase_if(keys, [&](const std::string& key) {
    const std::string last = key.substr(key.rfind('.') + 1) + ": ";
    for (std::size_t at = 0; (at = text.find(" " + last, at)) != std::string::npos; ++at)
      if (text.substr(at, text.find('\n', at) - at).find("recipe") != std::string::npos)
        return true;
    return false;
  });
  return keys;
}

TEST(ShippedDecks, EachDifferenceHasItsReason) {
  EXPECT_EQ(
      unexplained("gpt2-345m.yaml", {"parallel.zero", "checkpoint.keep", "log.tensorboard.enable"}),
      Keys{});
  EXPECT_EQ(unexplained("gpt2-xl-a10x32.yaml", {"parallel.data", "log.timers"}), Keys{});
  EXPECT_EQ(unexplained("gpt2-345m-2gpu.yaml", {"parallel.zero"}), Keys{});
  EXPECT_EQ(unexplained("gpt2-345m.yaml", {"optimizer.clip"}), Keys{"optimizer.clip"});
}

TEST(ShippedDecks, MegatronsExampleOnOneNode) {
  const Result result = convert({.file = kRecipes / "r0_single_node.sh"});
  EXPECT_EQ(differences(deck_of(result), shipped("gpt2-345m-2gpu.yaml")),
            Keys{"parallel.data"});  // 2 in the deck, which the launcher says in the script
  EXPECT_NE(result.deck.find("# Its ranks: 2 "), std::string::npos) << result.deck;
  const Result longer = convert({.file = kRecipes / "r0_single_node.sh", .arguments = {"320000"}});
  EXPECT_EQ(deck_of(longer).train.iterations, 320'000);
}

TEST(ShippedDecks, DeepSpeedsExampleWithTensorRanks) {
  const fs::path script = kRecipes / "r0_tensor.sh";
  const std::string problem = message_of<DeckError>([&] { convert({.file = script}); });
  EXPECT_NE(problem.find("\"train_batch_size\": 2048: the command line gives 9 = micro-batch 9"),
            std::string::npos)
      << problem;
  const Result result = convert({.file = script, .ignored = {"train_batch_size"}});
  EXPECT_EQ(differences(deck_of(result), shipped("gpt2-345m-tp4.yaml")), Keys{});
  // The same on chosen GPUs of two hosts: a hosts file for jobs/ssh/train.sh.
  const Result hosts =
      convert({.file = kRecipes / "r0_two_hosts.sh", .ignored = {"train_batch_size"}});
  EXPECT_EQ(hosts.hosts, "worker-1 slots=2 gpus=4,5\nworker-2 slots=2 gpus=4,5\n");
  EXPECT_EQ(deck_of(hosts), deck_of(result));
}

TEST(ShippedDecks, BigSciencesSetUpRun) {
  const Result result = convert({.file = kRecipes / "r1_setup_run.sh"});
  EXPECT_EQ(differences(deck_of(result), shipped("gpt2-bigscience-10k.yaml")), Keys{});
}

TEST(ShippedDecks, FirstMegatron) {
  const Result result = convert({.file = kRecipes / "r2_first_release.sh"});
  // It has room for two checkpoints, writes event files, and says what it leaves to ZeRO.
  EXPECT_EQ(differences(deck_of(result), shipped("gpt2-345m.yaml")),
            (Keys{"parallel.zero", "checkpoint.keep", "log.tensorboard.enable"}));
}

TEST(ShippedDecks, UnevenPipelines) {
  const Result large = convert({.file = kRecipes / "r3_uneven_pipeline.sh"});
  // The parts of an iteration are timed in the script alone.
  EXPECT_EQ(differences(deck_of(large), shipped("gpt2-xl-a10x32.yaml")),
            (Keys{"parallel.data", "log.timers"}));
  const Result small = convert({.file = kRecipes / "r3_small_job.sh"});
  EXPECT_EQ(differences(deck_of(small), shipped("gpt2-small.yaml")), Keys{});
  EXPECT_EQ(deck_of(small).batch.global * *deck_of(small).train.iterations, 1600);
  for (const auto& [name, samples] :
       {std::pair{"gpt2-small.yaml", 1600}, {"gpt2-xl-a10x32.yaml", 3200}}) {
    // Uncommented, the line that names the recipe's maps is a key of the deck.
    const std::string line =
        fmt::format("  # index_files: data/my-gpt2_text_document_train_indexmap_{}ns", samples);
    std::string text = read_file(kSource / "inputs" / name);
    const std::size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << name;
    text.erase(at + 2, 2);
    const deck::Deck with_maps = deck::parse(text, name, {"model.vocab=50257"}, kNoData);
    EXPECT_EQ(with_maps.data.index_files,
              fmt::format("data/my-gpt2_text_document_train_indexmap_{}ns_1024sl_1234s", samples));
  }
}

/// A case of the benchmark of layouts, by its name: MP_PP_1x8x4_512_2304x24.
struct Case {
  std::string name;
  std::int64_t micro, heads, accumulation;
};

// Micro-batches and heads as published; micro-batches that a data-parallel rank accumulates.
const std::vector<Case> kCases = {
    {"DP_1x1x1_2_1536x16", 2, 16, 1},       {"DP_8x1x1_16_1536x16", 2, 16, 1},
    {"DP_16x1x1_32_1536x16", 2, 16, 1},     {"DP_32x1x1_64_1536x16", 2, 16, 1},
    {"MP_1x1x1_8_768x12", 8, 12, 1},        {"MP_1x8x1_16_1536x16", 16, 16, 1},
    {"MP_1x16x1_16_3072x16", 16, 32, 1},    {"MP_1x32x1_16_3072x32", 16, 32, 1},
    {"2D_8x1x1_16_1536x16", 2, 16, 1},      {"2D_1x8x1_16_1536x16", 16, 16, 1},
    {"2D_2x4x1_16_1536x16", 8, 16, 1},      {"2D_4x2x1_16_1536x16", 4, 16, 1},
    {"2D_2x8x1_16_2304x24", 8, 24, 1},      {"2D_4x8x1_32_2304x24", 8, 24, 1},
    {"DP_PP_8x1x4_512_1536x16", 2, 16, 32}, {"MP_PP_1x8x4_512_2304x24", 16, 24, 32},
    {"2D_PP_2x4x4_512_2304x24", 8, 24, 32}, {"2D_PP_2x8x2_512_2304x24", 8, 24, 32}};

TEST(ShippedDecks, EighteenCasesOfTheBenchmarkOfLayouts) {
  const std::string text = read_file(kSource / "inputs/sweeps/dlperf.yaml");
  const deck::Sweep sweep = deck::expand_sweep(text, "dlperf.yaml");
  ASSERT_EQ(sweep.runs.size(), kCases.size());
  for (std::size_t i = 0; i < kCases.size(); ++i) {
    const Case& one = kCases[i];
    SCOPED_TRACE(one.name);
    ASSERT_EQ(sweep.runs[i].name, one.name);
    std::vector<std::string> overrides;
    for (const deck::SweptValue& value : sweep.runs[i].values)
      overrides.push_back(value.as_override());
    overrides.emplace_back("sweep=");
    deck::Deck shipped = deck::parse(text, "dlperf.yaml", overrides, kNoData);

    long data = 0, tensor = 0, pipeline = 0, global = 0, hidden = 0, layers = 0;
    std::size_t at = one.name.find('x');
    while (at > 0 && std::isdigit(static_cast<unsigned char>(one.name[at - 1]))) --at;
    ASSERT_EQ(std::sscanf(one.name.c_str() + at, "%ldx%ldx%ld_%ld_%ldx%ld", &data, &tensor,
                          &pipeline, &global, &hidden, &layers),
              6);
    const long ranks = data * tensor * pipeline;
    std::vector<std::string> arguments;
    for (const std::int64_t value :
         {std::max(ranks / 8, 1L), std::min(ranks, 8L), tensor, pipeline, one.micro,
          std::int64_t{global}, std::int64_t{layers}, std::int64_t{hidden}, one.heads})
      arguments.push_back(fmt::format("{}", value));
    deck::Deck converted =
        deck::parse(convert({.file = kRecipes / "r4_case.sh", .arguments = arguments}).deck,
                    "converted", {"model.vocab=51200"}, kNoData);
    deck::resolve_world_size(converted, ranks);
    for (const deck::Deck* deck : {&converted, &shipped}) {
      EXPECT_EQ(deck->model.heads, one.heads);
      EXPECT_EQ(deck->batch.micro, one.micro);
      EXPECT_EQ(deck->batch.global, global);
      EXPECT_EQ(deck->batch.global / (deck->batch.micro * *deck->parallel.data), one.accumulation);
    }
    // Ids alone are needed, nothing is evaluated in 520 iterations, event files are written.
    EXPECT_EQ(differences(converted, shipped), (Keys{"data.tokenizer.type", "evaluate.every",
                                                     "evaluate.at_end", "log.tensorboard.enable"}));
  }
}

}  // namespace
}  // namespace trireme::convert::flags
