#include "kernels/cuda/gemm/hopper/tiles.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace trireme::kernels::cuda {
namespace {

template <TileEpilogue kEpilogue>
using Tile = GemmTile<2, 192, 2, kEpilogue>;
using Accumulating = Tile<TileEpilogue::accumulate>;

TEST(HopperGemmTiles, FillTheSharedMemoryOfAnSm) {
  EXPECT_EQ(Tile<TileEpilogue::store>::kStages, 4);
  EXPECT_EQ(Tile<TileEpilogue::gelu_gradient>::kStages, 4);
  EXPECT_EQ(Tile<TileEpilogue::gated>::kStages, 4);
  EXPECT_EQ(Accumulating::kStages, 5);
  EXPECT_LE(Tile<TileEpilogue::gelu_gradient>::kBytes, 227 << 10);
}

TEST(HopperGemmSchedule, TakesEveryStepOfEveryTileOnce) {
  for (const auto& [rows, columns, group, splits, steps] :
       {std::tuple{1, 1, 8, 1, 1}, {3, 4, 8, 1, 5}, {19, 7, 8, 3, 25}, {16, 2, 4, 11, 93}}) {
    const GemmSchedule schedule{rows, columns, group, splits, steps};
    std::set<std::tuple<int, int, int>> seen;
    int last_split = 0;
    for (int i = 0; i < schedule.units(); ++i) {
      const GemmUnit unit = schedule.unit(i);
      ASSERT_GE(unit.row, 0);
      ASSERT_LT(unit.row, rows);
      ASSERT_GE(unit.column, 0);
      ASSERT_LT(unit.column, columns);
      ASSERT_LT(unit.first_step, unit.end_step);
      // A part of k is only waited for by those that are taken after it.
      ASSERT_GE(unit.split, last_split);
      last_split = unit.split;
      for (int step = unit.first_step; step < unit.end_step; ++step)
        ASSERT_TRUE(seen.emplace(unit.row, unit.column, step).second);
    }
    EXPECT_EQ(static_cast<int>(seen.size()), rows * columns * steps);
  }
}

TEST(HopperGemmSchedule, WalksGroupsOfRows) {
  const GemmSchedule schedule{.rows = 5, .columns = 3, .group = 2, .splits = 1, .steps = 1};
  const auto at = [&](int index) {
    const GemmUnit unit = schedule.unit(index);
    return std::pair(unit.row, unit.column);
  };
  EXPECT_EQ(at(0), std::pair(0, 0));
  EXPECT_EQ(at(1), std::pair(1, 0));
  EXPECT_EQ(at(2), std::pair(0, 1));
  EXPECT_EQ(at(6), std::pair(2, 0));
  EXPECT_EQ(at(12), std::pair(4, 0)) << "the last group has one row";
  EXPECT_EQ(at(13), std::pair(4, 1));
}

TEST(HopperGemmSchedule, BeginsAtAPartOfTheRowsAndLeavesNoGroupInTwo) {
  constexpr int kRows = 12, kColumns = 2;
  const GemmSchedule whole{.rows = kRows, .columns = kColumns, .group = 8, .splits = 1, .steps = 1};
  for (const auto& [parts, first] : {std::pair(2, 0), {2, 1}, {4, 3}}) {
    const GemmSchedule schedule = in_row_parts(whole, parts, first);
    const int part_units = kRows / parts * kColumns;
    std::set<std::pair<int, int>> seen;
    for (int i = 0; i < schedule.units(); ++i) {
      const GemmUnit unit = schedule.unit(i);
      EXPECT_EQ(unit.row / (kRows / parts), (first + i / part_units) % parts) << i;
      seen.emplace(unit.row, unit.column);
    }
    EXPECT_EQ(static_cast<int>(seen.size()), kRows * kColumns);
  }
  EXPECT_TRUE(has_row_parts<Tile<TileEpilogue::store>>(2048, 4));
  EXPECT_FALSE(has_row_parts<Tile<TileEpilogue::store>>(2048 + 256, 4));
}

// A unit that adds to what others added waits for them, so that no unit may be held by a cluster
// that has not begun.
TEST(HopperGemmSchedule, GivesUnitsAwayOnlyWhereNoneWaits) {
  const GemmSchedule whole{.rows = 5, .columns = 3, .group = 8, .splits = 1, .steps = 9};
  EXPECT_EQ(whole.given_units(4), 4);
  EXPECT_EQ(whole.tickets(4), 15);
  const GemmSchedule split{.rows = 5, .columns = 3, .group = 8, .splits = 3, .steps = 9};
  EXPECT_EQ(split.given_units(4), 0);
  EXPECT_EQ(split.tickets(4), 49);
}

TEST(HopperGemmSchedule, SplitsKWhereTilesAreFew) {
  EXPECT_EQ(best_splits(12, 1024, 66), 11) << "two parts of a tile for each cluster";
  EXPECT_EQ(best_splits(66, 1024, 66), 1);
  EXPECT_EQ(best_splits(1, 1024, 66), 64) << "the most";
  EXPECT_EQ(best_splits(1, 7, 66), 1) << "too few steps";
  const GemmSchedule forward = gemm_schedule<Tile<TileEpilogue::store>>(256, 192, 65536, 66);
  EXPECT_EQ(forward.splits, 1);
  EXPECT_EQ(forward.tiles(), 1);
  EXPECT_EQ(gemm_schedule<Tile<TileEpilogue::gated>>(256, 2 * 776, 64, 66).columns, 9)
      << "96 columns of gate and of up each";
  EXPECT_GT(gemm_schedule<Accumulating>(256, 192, 65536, 66).splits, 1);
}

}  // namespace
}  // namespace trireme::kernels::cuda
