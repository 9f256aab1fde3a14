#include "kernels/cuda/attention/hopper/tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "../documents_testing.hpp"
#include "../met_pairs.hpp"

namespace trireme::kernels::cuda {
namespace {

TEST(BoxForward, TakesHeadsWhoseRowsAreAligned) {
  for (const int d : {40, 48, 64, 72, 80, 96, 104, 128}) EXPECT_TRUE(fits_boxes(d, true)) << d;
  for (const int d : {8, 32, 36, 100, 126, 136, 256}) EXPECT_FALSE(fits_boxes(d, true)) << d;
  EXPECT_FALSE(fits_boxes(64, false));
}

// Walks as a block's consumers do, and expects each pair that attends to be met once, pairs behind
// a query only in the first tile, and there a key for each query.
template <int D>
void expect_forward_boxes_cover(int s, bool causal, const Starts& starts) {
  using Tile = BoxForwardTile<D>;
  MetPairs pairs(s, causal, starts);
  const FirstKeys& first_keys = pairs.first_keys;
  for (int block = 0; block < tiles_of(s, Tile::kQueries); ++block) {
    const int query_end = (block + 1) * Tile::kQueries;
    const int tiles = tiles_of(keys_end(s, query_end, causal), Tile::kKeys);
    const int first_tile = first_keys.first_key_tile(block * Tile::kQueries, Tile::kKeys);
    for (int half = 0; half < Tile::kConsumers; ++half) {
      const int query_begin = block * Tile::kQueries + 64 * half;
      for (int tile = tiles - 1; tile >= first_tile; --tile) {
        const int key_begin = tile * Tile::kKeys;
        const bool last = tile == tiles - 1;
        const int keys = last ? keys_of_last_tile<D>(half, causal) : Tile::kKeys;
        const bool masked = last && needs_mask(query_begin, key_begin, keys, s, causal);
        const bool cut = first_keys.cut(query_begin + 64, key_begin);
        for (int query = query_begin; query < query_begin + 64; ++query) {
          bool any = false;
          for (int key = key_begin; key < key_begin + keys; ++key) {
            if (masked && key >= keys_end(s, query + 1, causal)) continue;
            if (cut && first_keys.hide(query, key)) continue;
            any = true;
            pairs.meet(query, key);
          }
          ASSERT_TRUE(any || tile < tiles - 1)
              << "query " << query << " of " << s << " begins without a key";
        }
      }
    }
  }
  pairs.expect_each_once();
}

TEST(BoxForward, MeetsEachPairOnce) {
  for (const int s : {1, 7, 63, 64, 65, 127, 128, 129, 200, 256, 333, 512})
    for (const bool causal : {true, false})
      for (const Starts& starts : document_cases(s)) {
        expect_forward_boxes_cover<64>(s, causal, starts);
        expect_forward_boxes_cover<128>(s, causal, starts);
      }
}

TEST(BoxForwardSchedule, HoldsEachBlockOnce) {
  for (const int tasks : {1, 5, 24, 133})
    for (const int s : {1, 128, 1000, 4096, 70000}) {
      const BoxForwardSchedule schedule = box_forward_schedule<64>(tasks, s);
      std::vector<int> held(schedule.items());
      for (int index = 0; index < schedule.items(); ++index) {
        const BoxForwardItem item = schedule.item(index);
        ASSERT_TRUE(item.task >= 0 && item.task < tasks) << index;
        ASSERT_TRUE(item.block >= 0 && item.block < schedule.blocks) << index;
        ++held[item.task * schedule.blocks + item.block];
      }
      ASSERT_EQ(held, std::vector<int>(schedule.items(), 1)) << tasks << " tasks, " << s;
    }
}

// With the mask, block i walks over i + 1 tiles of keys: blocks of 132 that take them as they get
// free end together.
TEST(BoxForwardSchedule, SharesTheTilesEvenly) {
  constexpr int kWorkers = 132;
  for (const int tasks : {192, 400, 768}) {
    const BoxForwardSchedule schedule = box_forward_schedule<64>(tasks, 1024);
    std::vector<int> tiles(kWorkers);
    int all = 0;
    for (int index = 0; index < schedule.items(); ++index) {
      const int more = schedule.item(index).block + 1;
      *std::min_element(tiles.begin(), tiles.end()) += more;
      all += more;
    }
    EXPECT_LE(*std::max_element(tiles.begin(), tiles.end()), all / kWorkers + 4) << tasks;
  }
}

}  // namespace
}  // namespace trireme::kernels::cuda
