#include "plan/fit.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "decks.hpp"
#include "plan/remedies.hpp"

namespace trireme::plan {
namespace {

constexpr std::int64_t kVocab = 50257;

Verdict verdict_of(const std::vector<std::string>& words, std::int64_t ranks,
                   const std::optional<MemoryThere>& there) {
  const deck::Deck deck = gpt2_deck(words, ranks);
  return judge(deck, kVocab, plan_run(deck, kVocab), there);
}

TEST(Fit, AGpuHoldsTheRankWithTheHighestPeak) {
  const std::vector<std::string> words = {"run.device=cuda", "parallel.zero=0"};
  const deck::Deck deck = gpt2_deck(words, 2);
  const std::size_t needed = plan_run(deck, kVocab).largest().memory.total();
  const Verdict fits = verdict_of(words, 2, MemoryThere{needed, "that each GPU has"});
  EXPECT_EQ(fits.fits, true);
  EXPECT_TRUE(fits.text.starts_with("fits: each rank needs ")) << fits.text;
  const Verdict not_quite = verdict_of(words, 2, MemoryThere{needed - 1, "that each GPU has"});
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
  EXPECT_EQ(verdict_of(words, 4, MemoryThere{together, "that this host has free"}).fits, true);
  const Verdict verdict =
      verdict_of(words, 4, MemoryThere{together - 1, "that this host has free"});
  EXPECT_EQ(verdict.fits, false);
  EXPECT_TRUE(verdict.text.starts_with("does not fit: 4 ranks need ")) << verdict.text;
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
  EXPECT_EQ(parse_memory("--memory", "1024"), 1024u);
  for (const char* text : {"", "GiB", "0", "-1G", "80XB", "80Gi", "80GiBs", "1e99T", "nan"})
    EXPECT_THROW(parse_memory("--memory", text), UsageError) << text;
}

}  // namespace
}  // namespace trireme::plan
