#include "evaluate/text_datasets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace trireme::evaluate {
namespace {

std::vector<std::int32_t> counting(std::int64_t size) {
  std::vector<std::int32_t> tokens(size);
  for (std::int64_t i = 0; i < size; ++i) tokens[i] = static_cast<std::int32_t>(i);
  return tokens;
}

TEST(WindowDataset, ScoresEveryTokenButTheFirstOnce) {
  const std::int64_t sequence = 8;
  for (const std::int64_t step : {1, 3, 8})
    for (std::int64_t size = 2; size < 40; ++size) {
      const WindowDataset windows(counting(size), sequence, step, /*padding=*/99);
      std::vector<std::int32_t> tokens(sequence), labels(sequence);
      const std::array<std::span<std::int32_t>, 2> tensors{tokens, labels};
      std::vector<int> scored(size, 0);
      for (std::int64_t k = 0; k < windows.samples(); ++k) {
        windows.read(k, tensors);
        int labels_of_window = 0;
        for (std::int64_t i = 0; i < sequence; ++i) {
          if (labels[i] == data::kIgnoredLabel) continue;
          ++labels_of_window;
          ++scored[labels[i]];
          EXPECT_EQ(tokens[i] + 1, labels[i]);
          EXPECT_GE(i, k == 0 ? 0 : sequence - step) << "has less context than the step leaves";
        }
        EXPECT_GT(labels_of_window, 0) << "window " << k << " of " << size << " scores nothing";
      }
      EXPECT_EQ(scored[0], 0);
      for (std::int64_t i = 1; i < size; ++i)
        EXPECT_EQ(scored[i], 1) << "token " << i << " of " << size << ", step " << step;
    }
}

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
    ranks[rank].add(batch, 0, [&](std::int64_t) {
      const auto& all = logits[row++];
      return LocalLogits{2 * rank, {all.begin() + 2 * rank, all.begin() + 2 * rank + 2}};
    });
  }
  // Both ranks combine in step: the first call of each gives its own numbers, the second the ids.
  std::vector<std::vector<double>> seen;
  const auto record = [&](double* values, std::size_t count) {
    seen.emplace_back(values, values + count);
  };
  auto copies = ranks;
  for (ClozeScores& each : copies) each.combine(record);
  std::vector<double> largest(4);
  for (std::size_t i = 0; i < 4; ++i) largest[i] = std::max(seen[0][i], seen[2][i]);
  seen.clear();
  int call = 0;
  std::vector<double> ids(4, -1e9);
  for (ClozeScores& each : ranks) {
    auto copy = each;
    copy.combine([&](double* values, std::size_t count) {
      if (call++ % 2 == 0) return (void)std::copy(largest.begin(), largest.end(), values);
      for (std::size_t i = 0; i < count; ++i) ids[i] = std::max(ids[i], values[i]);
    });
  }
  EXPECT_EQ(ids, (std::vector<double>{-1, -2, -3, -0.0}));
  ranks[0].combine([&](double* values, std::size_t) {
    std::copy_n(call++ % 2 == 0 ? largest.begin() : ids.begin(), 4, values);
  });
  EXPECT_EQ(ranks[0].correct(), 2);
}

}  // namespace
}  // namespace trireme::evaluate
