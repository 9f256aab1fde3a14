#include "grid/layout.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme::grid {
namespace {

TEST(Layout, TensorRanksAreNeighbours) {
  const Layout layout{.tensor = 2, .data = 3, .pipeline = 4, .partition = {0, 2, 2, 0}};
  EXPECT_EQ(layout.ranks(), 24);
  EXPECT_EQ(layout.rank_of({1, 0, 0}), 1);
  EXPECT_EQ(layout.rank_of({0, 1, 0}), 2);
  EXPECT_EQ(layout.rank_of({0, 0, 1}), 6);
  for (int rank = 0; rank < layout.ranks(); ++rank)
    EXPECT_EQ(layout.rank_of(layout.coordinates_of(rank)), rank);
  EXPECT_THROW(layout.coordinates_of(24), InternalError);
}

TEST(Layout, StagesMayHaveNoLayers) {
  const Layout layout{.pipeline = 8, .partition = {0, 11, 8, 8, 8, 8, 5, 0}};
  EXPECT_EQ(layout.layers_of(0), (LayerRange{0, 0}));
  EXPECT_EQ(layout.layers_of(1), (LayerRange{0, 11}));
  EXPECT_EQ(layout.layers_of(6), (LayerRange{43, 5}));
  EXPECT_EQ(layout.layers_of(7), (LayerRange{48, 0}));
  EXPECT_THROW(layout.layers_of(8), InternalError);
}

TEST(Layout, ChunksGoRoundTheStages) {
  const Layout layout{.pipeline = 2, .partition = {4, 4}, .chunks = 2};
  EXPECT_EQ(layout.layers_of(0, 0), (LayerRange{0, 2}));
  EXPECT_EQ(layout.layers_of(1, 0), (LayerRange{2, 2}));
  EXPECT_EQ(layout.layers_of(0, 1), (LayerRange{4, 2}));
  EXPECT_EQ(layout.layers_of(1, 1), (LayerRange{6, 2}));
  EXPECT_THROW(layout.layers_of(0, 2), InternalError);
  EXPECT_THROW((Layout{.partition = {3}, .chunks = 2}.layers_of(0, 1)), InternalError);
}

TEST(PaddedShard, CoversEverythingOnce) {
  for (std::int64_t total : {0, 1, 5, 2048, 50257})
    for (int shards : {1, 2, 3, 4, 8}) {
      std::int64_t next = 0;
      for (int index = 0; index < shards; ++index) {
        const ShardRange range = padded_shard(total, shards, index);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.size(), range.padded);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
}

}  // namespace
}  // namespace trireme::grid
