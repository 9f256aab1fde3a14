#include "evaluate/tasks.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::evaluate {
namespace {

// The logits of two tensor ranks with two ids each, of which the second rank has not seen item 1.
TEST(ClozeScores, TakesTheLowerIdOfEqualLogitsOfAllRanks) {
  const ClozeDataset items({{{7}, {1}}, {{7, 8}, {2, 3}}, {{7}, {3}}}, /*sequence=*/4, 0);
  const std::vector<std::vector<float>> logits = {
      {0, 5, 5, 1},  // item 0: 1 before 2, on the other rank
      {0, 0, 9, 0},  // item 1: 2
      {0, 0, 0, 4},  // and 3
      {6, 0, 0, 6},  // item 2: 0 before 3
  };
  data::Batch batch;
  batch.resize(items.fields(), 3);
  for (int j = 0; j < 3; ++j) batch.read(items, j, j);
  std::vector<ClozeScores> ranks(2, ClozeScores(items));
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    std::size_t row = 0;
    ScoredTokens tokens{.first = 0, .log_probabilities = std::vector<double>(12, -0.5)};
    tokens.logits = [&](std::int64_t) {
      const auto& all = logits[row++];
      return LocalLogits{2 * rank, {all.begin() + 2 * rank, all.begin() + 2 * rank + 2}};
    };
    ranks[rank].add(batch, 0, tokens);
  }
  // Both ranks combine in step: the first call is of log-probabilities, the second of each rank's
  // largest logits, the third of the ids.
  std::vector<std::vector<double>> seen;
  const auto record = [&](double* values, std::size_t count) {
    seen.emplace_back(values, values + count);
  };
  auto copies = ranks;
  for (ClozeScores& each : copies) each.combine(record);
  std::vector<double> largest(4);
  for (std::size_t i = 0; i < 4; ++i) largest[i] = std::max(seen[1][i], seen[4][i]);
  seen.clear();
  int call = 0;
  std::vector<double> ids(4, -1e9);
  for (ClozeScores& each : ranks) {
    auto copy = each;
    copy.combine([&](double* values, std::size_t count) {
      const int which = call++ % 3;
      if (which == 0) return;
      if (which == 1) return (void)std::copy(largest.begin(), largest.end(), values);
      for (std::size_t i = 0; i < count; ++i) ids[i] = std::max(ids[i], values[i]);
    });
  }
  EXPECT_EQ(ids, (std::vector<double>{-1, -2, -3, -0.0}));
  ranks[0].combine([&](double* values, std::size_t) {
    const int which = call++ % 3;
    if (which > 0) std::copy_n(which == 1 ? largest.begin() : ids.begin(), 4, values);
  });
  EXPECT_EQ(ranks[0].correct(), 2);
  EXPECT_TRUE(ranks[0].is_correct(0) && ranks[0].is_correct(1));
  EXPECT_DOUBLE_EQ(ranks[0].log_probability(1), -1.0);
}

// A head that keeps few tokens gives a micro-batch in parts, whose log-probabilities belong to
// different items.
TEST(ClozeScores, TakesAMicroBatchInParts) {
  const ClozeDataset items({{{7}, {1, 2}}, {{7, 8}, {3}}}, /*sequence=*/3, 0);
  data::Batch batch;
  batch.resize(items.fields(), 2);
  for (int j = 0; j < 2; ++j) batch.read(items, j, j);
  ClozeScores scores(items, ClozeScores::Want::log_probabilities);
  for (std::int64_t first = 0; first < 6; first += 2)
    scores.add(batch, 0,
               {.first = first,
                .log_probabilities = {-1.0 * static_cast<double>(first),
                                      -10.0 * static_cast<double>(first + 1)},
                .logits = {}});
  scores.combine([](double*, std::size_t) {});
  // Token 2 i + j is position i of item j: item 0 has its targets at tokens 0 and 2, item 1 at 3.
  EXPECT_DOUBLE_EQ(scores.log_probability(0), -0.0 - 2.0);
  EXPECT_DOUBLE_EQ(scores.log_probability(1), -10.0 * 3);
}

}  // namespace
}  // namespace trireme::evaluate
