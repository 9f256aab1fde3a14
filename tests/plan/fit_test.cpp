#include "plan/run_plan.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "core/files.hpp"
#include "decks.hpp"

namespace trireme::plan {
namespace {

constexpr std::int64_t kVocab = 50257;

Verdict verdict_of(const std::vector<std::string>& words, std::int64_t ranks,
                   const std::optional<AvailableMemory>& there) {
  const deck::Deck deck = gpt2_deck(words, ranks);
  return judge(deck, kVocab, plan_run(deck, kVocab), there);
}

TEST(Fit, AGpuHoldsTheRankWithTheHighestPeak) {
  const std::vector<std::string> words = {"run.device=cuda", "parallel.zero=0"};
  const deck::Deck deck = gpt2_deck(words, 2);
  const std::size_t needed = plan_run(deck, kVocab).largest().memory.total();
  const Verdict fits = verdict_of(words, 2, AvailableMemory{needed, "that each GPU has"});
  EXPECT_EQ(fits.fits, true);
  EXPECT_TRUE(fits.text.starts_with("fits: each rank needs ")) << fits.text;
  const Verdict not_quite = verdict_of(words, 2, AvailableMemory{needed - 1, "that each GPU has"});
  EXPECT_EQ(not_quite.fits, false);
  EXPECT_TRUE(not_quite.text.starts_with("does not fit: each rank needs ")) << not_quite.text;
  EXPECT_NE(not_quite.text.find("recompute.granularity=selective ("), std::string::npos)
      << not_quite.text;
  EXPECT_TRUE(not_quite.text.ends_with(" would fit")) << not_quite.text;
}

TEST(Fit, AHostHoldsAllItsRanks) {
  const std::vector<std::string> words = {"run.device=host", "parallel.pipeline=2"};
  const RunPlan plan = plan_run(gpt2_deck(words, 4), kVocab);
  const std::size_t together =
      2 * plan.stages[0].memory.total() + 2 * plan.stages[1].memory.total();
  EXPECT_EQ(bytes_of_ranks(plan, 4), together);
  EXPECT_EQ(bytes_of_ranks(plan, 1), plan.largest().memory.total());
  EXPECT_EQ(verdict_of(words, 4, AvailableMemory{together, "that this host has free"}).fits, true);
  const Verdict verdict =
      verdict_of(words, 4, AvailableMemory{together - 1, "that this host has free"});
  EXPECT_EQ(verdict.fits, false);
  EXPECT_TRUE(verdict.text.starts_with("does not fit: 4 ranks need ")) << verdict.text;
}

// What a run says on a GPU, without one.
TEST(Fit, SaysWhyAGpuHasNoRoom) {
  const deck::Deck deck = gpt2_deck({"run.device=cuda", "parallel.pipeline=2"}, 2);
  const MemoryPlan mine = plan_run(deck, kVocab).stages[1].memory;
  const std::size_t needed = mine.total() - mine.libraries, total = std::size_t{80} << 30;
  EXPECT_EQ(gpu_memory_problem(deck, kVocab, mine, needed, total), "");
  const std::string problem = gpu_memory_problem(deck, kVocab, mine, needed - 1, total);
  const std::string bytes = human_bytes(static_cast<double>(needed));
  EXPECT_TRUE(problem.starts_with("the plan needs " + bytes + " of GPU memory, ")) << problem;
  EXPECT_NE(problem.find(" of 80.0 GiB are free; the "), std::string::npos) << problem;
  EXPECT_EQ(problem.find("libraries"), std::string::npos) << "they are loaded: " << problem;
  EXPECT_NE(problem.find("recompute.granularity="), std::string::npos) << problem;
  EXPECT_TRUE(problem.ends_with(" would fit")) << problem;
  EXPECT_TRUE(gpu_memory_problem(deck, kVocab, mine, 1 << 20, total)
                  .ends_with("(parallel.tensor, parallel.pipeline)"));
}

TEST(Fit, SaysWhyAHostHasNoRoom) {
  const deck::Deck deck = gpt2_deck({"run.device=host", "parallel.data=2"}, 2);
  const RunPlan plan = plan_run(deck, kVocab);
  const MemoryPlan& each = plan.largest().memory;
  const std::size_t needed = 2 * (each.total() - each.libraries);
  EXPECT_EQ(host_memory_problem(deck, kVocab, plan, 2, needed, needed), "");
  const std::string problem = host_memory_problem(deck, kVocab, plan, 2, needed, needed - 1);
  EXPECT_TRUE(problem.starts_with("its 2 ranks need ")) << problem;
  EXPECT_TRUE(problem.ends_with(" would fit")) << problem;
}

TEST(Fit, NamesTheStageAndSaysWhenNothingIsKnown) {
  const Verdict verdict = verdict_of({"run.device=cuda", "parallel.pipeline=2"}, 2, {});
  EXPECT_EQ(verdict.fits, std::nullopt);
  EXPECT_TRUE(verdict.text.starts_with("the rank with the highest peak memory, of stage "))
      << verdict.text;
  EXPECT_TRUE(
      verdict.text.ends_with("the memory of the GPUs is not known here: --memory SIZE "
                             "compares"))
      << verdict.text;
}

TEST(Fit, ReadsSizes) {
  EXPECT_EQ(parse_memory("--memory", "80GiB"), 80ull << 30);
  EXPECT_EQ(parse_memory("--memory", "80 GB"), 80'000'000'000ull);
  EXPECT_EQ(parse_memory("--memory", "81920M"), 80ull << 30);
  EXPECT_EQ(parse_memory("--memory", "1.5T"), 3ull << 39);
  EXPECT_EQ(parse_memory("--memory", "80gib"), 80ull << 30);
  EXPECT_EQ(parse_memory("--memory", "1024B"), 1024u);
  EXPECT_EQ(parse_memory("--memory", "85899345920"), 80ull << 30);
  for (const char* text : {"80", "", "GiB", "0", "-1G", "80XB", "80Gi", "80GiBs", "1e99T", "nan"})
    EXPECT_THROW(parse_memory("--memory", text), UsageError) << text;
}

using Overrides = std::vector<std::string>;

/// What fits where a run of these `words` needs one byte more than with `change`.
std::vector<Suggestion> found(const Overrides& words, const Overrides& change, std::int64_t ranks) {
  Overrides changed = words;
  changed.insert(changed.end(), change.begin(), change.end());
  return suggestions(gpt2_deck(words, ranks), kVocab,
                     needed_bytes(gpt2_deck(changed, ranks), kVocab));
}

std::vector<Overrides> overrides_of(const std::vector<Suggestion>& suggestions) {
  std::vector<Overrides> all;
  for (const Suggestion& suggestion : suggestions) all.push_back(suggestion.overrides);
  return all;
}

// GPT-2 on two GPUs, each with all moments.
const Overrides kCuda = {"run.device=cuda", "parallel.zero=0"};
const Overrides kZero = {"parallel.zero=1"}, kSelective = {"recompute.granularity=selective"},
                kFull = {"recompute.granularity=full"};
const Overrides kOffload = {"recompute.granularity=full", "recompute.offload=true"};

TEST(Suggestions, TheMildestOfEachKindThatFits) {
  const auto little = found(kCuda, kSelective, 2);
  EXPECT_EQ(overrides_of(little), (std::vector<Overrides>{kSelective, kZero, {"batch.micro=2"}}));
  EXPECT_EQ(
      little[0].bytes,
      needed_bytes(
          gpt2_deck({"run.device=cuda", "parallel.zero=0", "recompute.granularity=selective"}, 2),
          kVocab));
  // Sharing moments alone is not enough; a small batch has little to compute again.
  const Overrides smallest = {"batch.micro=1"};
  EXPECT_EQ(overrides_of(found(kCuda, kFull, 2)), (std::vector<Overrides>{kFull, smallest}));
  EXPECT_EQ(overrides_of(found(kCuda, kOffload, 2)), (std::vector<Overrides>{kOffload, smallest}));
  EXPECT_EQ(overrides_of(found(kCuda, smallest, 2)), (std::vector<Overrides>{smallest}));
}

TEST(Suggestions, WhatTheDeckForbidsIsLeftOut) {
  Overrides words = kCuda;
  words.insert(words.end(), {"parallel.pipeline=2", "parallel.schedule=zero-bubble"});
  EXPECT_EQ(overrides_of(found(words, {"batch.micro=1"}, 2)),
            (std::vector<Overrides>{{"batch.micro=1"}}));
  // One data rank has no other to shard moments over, and one sample cannot be halved.
  EXPECT_EQ(overrides_of(found({"run.device=cuda", "batch.micro=1"}, kFull, 1)),
            (std::vector<Overrides>{kFull}));
}

TEST(Suggestions, TensorRanksShareBeforeTheHostHelps) {
  const Overrides words = {"run.device=cuda", "parallel.tensor=2", "recompute.granularity=full"};
  const Overrides partition = {"recompute.partition=true"}, offload = {"recompute.offload=true"};
  EXPECT_EQ(overrides_of(found(words, partition, 2)).front(), partition);
  EXPECT_EQ(overrides_of(found(words, offload, 2)).front(), offload);
}

TEST(Suggestions, AllTogetherIfNoneSuffices) {
  const Overrides all = {"recompute.granularity=full", "recompute.offload=true", "parallel.zero=3"};
  EXPECT_EQ(overrides_of(found(kCuda, all, 2)), (std::vector<Overrides>{all}));
  Overrides smaller = all;
  smaller.push_back("batch.micro=1");
  EXPECT_EQ(overrides_of(found(kCuda, smaller, 2)), (std::vector<Overrides>{smaller}));
  EXPECT_TRUE(suggestions(gpt2_deck(kCuda, 2), kVocab, 1000).empty());
}

TEST(Suggestions, InWords) {
  EXPECT_EQ(
      to_text(std::vector<Suggestion>{}),
      "neither recomputation, parallel.zero nor a smaller batch.micro makes it fit; shard the "
      "model over more ranks (parallel.tensor, parallel.pipeline)");
  EXPECT_EQ(to_text({{kFull, 3ul << 30}}), "recompute.granularity=full (3.0 GiB) would fit");
  EXPECT_EQ(to_text({{kOffload, 1ul << 30}, {kZero, 2ul << 30}, {{"batch.micro=2"}, 3ul << 30}}),
            "recompute.granularity=full recompute.offload=true (1.0 GiB), parallel.zero=1 (2.0 "
            "GiB) or batch.micro=2 (3.0 GiB) would fit");
}

}  // namespace

}  // namespace trireme::plan
