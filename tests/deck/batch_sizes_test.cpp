#include "deck/deck.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "decks.hpp"

namespace trireme::deck {
namespace {

Batch ramped(std::int64_t start, std::int64_t step, std::int64_t samples, std::int64_t global) {
  return {
      .micro = 1, .global = global, .rampup = {.start = start, .step = step, .samples = samples}};
}

// BigScience's GPT-2 recipe: --rampup-batch-size 2 2 1000 --global-batch-size 16.
const Batch kRecipe = ramped(2, 2, 1000, 16);

// Iteration by iteration, as Megatron-LM counts.
std::vector<Progress> simulate(const Batch& batch, std::int64_t iterations) {
  const BatchSizes sizes(batch);
  std::vector<Progress> run = {{}};
  for (std::int64_t i = 0; i < iterations; ++i)
    run.push_back({i + 1, run.back().samples + sizes.at(run.back().samples)});
  return run;
}

// A few ramps whose parts do not fall on whole batches or whole samples.
std::vector<Batch> several_ramps() {
  return {kRecipe,
          ramped(1, 1, 1, 8),
          ramped(4, 4, 97, 16),
          ramped(3, 5, 1001, 48),
          ramped(8, 24, 10, 32),
          ramped(16, 16, 100'003, 112),
          {.micro = 1, .global = 16, .rampup = {}}};
}

TEST(BatchSizes, TheRecipesRampUp) {
  const BatchSizes sizes(kRecipe);
  std::map<std::int64_t, int> iterations;
  Progress now;
  for (; now.samples <= 1000; now = sizes.advance(now, 1)) ++iterations[sizes.at(now.samples)];
  EXPECT_EQ(iterations,
            (std::map<std::int64_t, int>{
                {2, 72}, {4, 36}, {6, 24}, {8, 18}, {10, 14}, {12, 12}, {14, 10}, {16, 1}}));
  EXPECT_EQ(now, (Progress{187, 1016}));
  EXPECT_EQ(sizes.reach({}, 1001), now);
  EXPECT_EQ(sizes.advance({}, 100), (Progress{100, 256}));
  EXPECT_EQ(sizes.at(254), 4);
  EXPECT_EQ(sizes.at(1000), 16);
  EXPECT_EQ(sizes.fill({}, 10'000), (Progress{748, 1016 + 561 * 16}));
}

TEST(BatchSizes, AreConstantWithoutARampUp) {
  const BatchSizes sizes({.micro = 2, .global = 16, .rampup = {}});
  EXPECT_EQ(sizes.at(0), 16);
  EXPECT_EQ(sizes.at(1'000'000'000'000), 16);
  EXPECT_EQ(sizes.advance({3, 40}, 2), (Progress{5, 72}));
  EXPECT_EQ(sizes.reach({}, 33), (Progress{3, 48}));
  EXPECT_EQ(sizes.fill({}, 47), (Progress{2, 32}));
  EXPECT_EQ(sizes.fill({5, 100}, 47), (Progress{5, 100})) << "the run is over";
}

TEST(BatchSizes, StridesComeToWhereSingleStepsCome) {
  for (const Batch& batch : several_ramps()) {
    const BatchSizes sizes(batch);
    const auto run = simulate(batch, 400);
    for (std::size_t i = 0; i < run.size(); i += 7) {
      SCOPED_TRACE(
          fmt::format("{} to {}, iteration {}", batch.rampup.start.value_or(0), batch.global, i));
      EXPECT_EQ(sizes.advance({}, static_cast<std::int64_t>(i)), run[i]);
      EXPECT_EQ(sizes.advance(run[i / 2], static_cast<std::int64_t>(i - i / 2)), run[i]);
      EXPECT_EQ(sizes.reach({}, run[i].samples), run[i]);
      EXPECT_EQ(sizes.fill({}, run[i].samples), run[i]);
      if (i == 0) continue;
      EXPECT_EQ(sizes.reach({}, run[i].samples - 1),
                run[i].samples - 1 > run[i - 1].samples ? run[i] : run[i - 1]);
      EXPECT_EQ(sizes.fill(run[i / 2], run[i].samples - 1), run[i - 1]);
    }
  }
}

TEST(BatchSizes, MultiplesAreCountedAsTheyAreReached) {
  for (const Batch& batch : several_ramps()) {
    const auto run = simulate(batch, 400);
    for (const Length every :
         {Length{3, Unit::iterations}, Length{1, Unit::samples}, Length{5, Unit::samples},
          Length{16, Unit::samples}, Length{100, Unit::samples}, Length{1000, Unit::samples}}) {
      std::int64_t times = 0;
      for (std::size_t i = 1; i < run.size(); ++i) {
        times += reaches(every, run[i - 1], run[i]);
        ASSERT_EQ(BatchSizes(batch).times_reached(every, run[i]), times)
            << batch.rampup.start.value_or(0) << " to " << batch.global << ", every " << every.value
            << ", iteration " << i;
      }
    }
  }
}

// A walk over the sizes, not over the samples.
TEST(BatchSizes, LongRampsTakeNoTime) {
  const BatchSizes sizes(ramped(1, 1, 1'000'000'000'000, 1 << 20));
  const Progress end = sizes.reach({}, 1'000'000'000'001);
  EXPECT_GT(end.iteration, 1'000'000);
  EXPECT_EQ(sizes.at(end.samples), 1 << 20);
  EXPECT_EQ(sizes.advance({}, end.iteration), end);
}

TEST(BatchSizes, TheDecksLengthsFollowTheRampUp) {
  const Deck deck = small_deck({"train.iterations=", "train.samples=10_000", "batch.rampup.start=2",
                                "batch.rampup.step=2", "batch.rampup.samples=1000"});
  EXPECT_EQ(total_iterations(deck), 748);
  EXPECT_EQ(total_samples(deck), 9992);
  EXPECT_EQ(in_samples({100, Unit::iterations}, deck), 256);
  EXPECT_EQ(in_iterations({256, Unit::samples}, deck), 100);
  EXPECT_EQ(in_iterations({257, Unit::samples}, deck), 101);
  EXPECT_EQ(end_of_run(deck, {100, 256}), (Progress{748, 9992}));
  EXPECT_EQ(end_of_run(deck, {10, 160}), (Progress{682, 9992}))
      << "continues from larger batches than its own";
}

}  // namespace
}  // namespace trireme::deck
