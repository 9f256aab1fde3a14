#include "kernels/cuda/attention/hopper/tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "../documents_testing.hpp"
#include "../met_pairs.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

TEST(BoxBackwardTiles, TicketsCoverEachBlockOnceLaterKeysFirst) {
  for (const int tasks : {1, 3, kTasksPerGroup, kTasksPerGroup + 1, 3 * kTasksPerGroup - 1})
    for (const int blocks : {1, 2, 7}) {
      std::vector<int> next(tasks, blocks - 1);
      for (int ticket = 0; ticket < tasks * blocks; ++ticket) {
        const KeyBlock drawn = key_block(ticket, tasks, blocks);
        ASSERT_GE(drawn.task, 0);
        ASSERT_LT(drawn.task, tasks);
        ASSERT_EQ(drawn.block, next[drawn.task]--) << ticket << " of " << tasks << " x " << blocks;
      }
      EXPECT_EQ(next, std::vector<int>(tasks, -1));
    }
}

// Walks as attend_boxes_backward does: each pair that attends is met once, unmasked, and the turns
// of each tile of dQ count from 0, the last of them that of the first block that it attends to.
template <int D>
void expect_backward_boxes_cover(int s, bool causal, const Starts& starts) {
  using Tile = BoxBackwardTile<D>;
  MetPairs pairs(s, causal, starts);
  const FirstKeys& first_keys = pairs.first_keys;
  const int blocks = tiles_of(s, Tile::kKeys), tiles = tiles_of(s, Tile::kQueries);
  std::vector<int> turns(tiles), last(tiles, -1);
  for (int ticket = 0; ticket < blocks; ++ticket) {
    const int block = key_block(ticket, 1, blocks).block;
    const int first = first_query_tile(block * Tile::kKeys, Tile::kQueries, causal);
    const int key_end = (block + 1) * Tile::kKeys;
    ASSERT_TRUE(first < tiles && first_keys.tile_reaches(first, Tile::kQueries, key_end))
        << "a block without a tile would leave dK and dV unwritten";
    for (int tile = first; tile < tiles; ++tile) {
      if (!first_keys.tile_reaches(tile, Tile::kQueries, key_end)) break;
      ASSERT_EQ(turn_of(tile, block, Tile::kQueries, Tile::kKeys, s, causal), turns[tile]++);
      last[tile] = block;
      for (int warpgroup = 0; warpgroup < Tile::kWarpgroups; ++warpgroup) {
        const int key_begin = block * Tile::kKeys + 64 * warpgroup;
        const int query_begin = tile * Tile::kQueries;
        const bool masked = needs_mask(query_begin, key_begin, 64, s, causal) ||
                            first_keys.cut(query_begin + Tile::kQueries, key_begin);
        for (int query = query_begin; query < std::min(s, query_begin + Tile::kQueries); ++query)
          for (int key = key_begin; key < key_begin + 64; ++key) {
            if (!masked || pairs.attend(query, key)) pairs.meet(query, key);
          }
      }
    }
  }
  for (int tile = 0; tile < tiles; ++tile)
    EXPECT_EQ(last[tile], first_keys.first_key_tile(tile * Tile::kQueries, Tile::kKeys));
  pairs.expect_each_once();
  // The partial sums of dQ fit the workspace.
  const auto layout = attention_backward_layout(DType::bf16, s, 3, 5, D);
  EXPECT_GE(layout.end - layout.partial_dq,
            sizeof(float) * 15 * tiles * Tile::kQueries * Tile::kPartialColumns);
  EXPECT_GE(layout.turns_bytes, sizeof(unsigned) * (1 + 15 * tiles));
}

TEST(BoxBackwardTiles, MeetEachPairOnceAndInTurn) {
  for (const int s : {1, 7, 63, 64, 65, 127, 128, 129, 200, 256, 333, 512})
    for (const bool causal : {true, false})
      for (const Starts& starts : document_cases(s)) {
        expect_backward_boxes_cover<64>(s, causal, starts);
        expect_backward_boxes_cover<80>(s, causal, starts);
        expect_backward_boxes_cover<96>(s, causal, starts);
        expect_backward_boxes_cover<128>(s, causal, starts);
      }
}

}  // namespace
}  // namespace trireme::kernels::cuda
