#include "kernels/cuda/attention/tiles.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "documents_testing.hpp"
#include "kernels/cuda/workspace.hpp"
#include "met_pairs.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kLengths[] = {1, 7, 31, 32, 33, 64, 65, 127, 128, 129, 200, 256, 333, 512};

TEST(AttentionTiles, HeadsArePaddedToMultiplesOfSixteen) {
  for (int d = 1; d <= kMaxHead; ++d) {
    const int padded = padded_head(d);
    EXPECT_GE(padded, d);
    EXPECT_EQ(padded % 16, 0);
    EXPECT_EQ(padded_head(padded), padded);
    EXPECT_EQ(tile_stride(padded) / 8 % 2, 1) << padded << ": rows would share banks";
  }
  EXPECT_EQ(padded_head(64), 64);
  EXPECT_EQ(padded_head(80), 80);
  EXPECT_EQ(padded_head(100), 112);
}

TEST(AttentionTiles, HeadsGoToTheLeastSizeThatHoldsThem) {
  const auto chosen = [](std::int64_t d) {
    std::vector<int> sizes;
    dispatch_head(HeadSizes<64, 80, 128>(), d,
                  [&](auto size) { sizes.push_back(decltype(size)::value); });
    return sizes;
  };
  EXPECT_EQ(chosen(1), std::vector{64});
  EXPECT_EQ(chosen(64), std::vector{64});
  EXPECT_EQ(chosen(65), std::vector{80});
  EXPECT_EQ(chosen(100), std::vector{128});
  EXPECT_EQ(chosen(129), std::vector<int>());
}

// Walks as attend_tiles does, and expects each pair that attends to be met once, unmasked.
template <int D>
void expect_forward_covers(int s, bool causal, const Starts& starts) {
  using Tile = ForwardTile<D>;
  MetPairs pairs(s, causal, starts);
  const FirstKeys& first_keys = pairs.first_keys;
  for (int block = 0; block < tiles_of(s, Tile::kQueries); ++block) {
    const int query_begin = block * Tile::kQueries;
    const int end = keys_end(s, query_begin + Tile::kQueries, causal);
    for (int warp = 0; warp < Tile::kWarps; ++warp) {
      const int warp_query = query_begin + warp * Tile::kWarpQueries;
      bool first = true;
      const int first_tile = first_keys.first_key_tile(query_begin, Tile::kKeys);
      for (int tile = tiles_of(end, Tile::kKeys) - 1; tile >= first_tile; --tile) {
        const int key_begin = tile * Tile::kKeys;
        if (all_masked(warp_query, Tile::kWarpQueries, key_begin, s, causal) ||
            first_keys.all_behind(warp_query, key_begin + Tile::kKeys))
          continue;
        const bool masked = needs_mask(warp_query, key_begin, Tile::kKeys, s, causal) ||
                            first_keys.cut(warp_query + Tile::kWarpQueries, key_begin);
        for (int query = warp_query; query < warp_query + Tile::kWarpQueries; ++query) {
          bool any = false;
          for (int key = key_begin; key < key_begin + Tile::kKeys; ++key) {
            if (masked && !pairs.attend(query, key)) continue;
            any = true;
            pairs.meet(query, key);
          }
          ASSERT_TRUE(any || !first) << "query " << query << " of " << s << " begins without a key";
        }
        first = false;
      }
    }
  }
  pairs.expect_each_once();
}

TEST(AttentionTiles, ForwardMeetsEachPairOnce) {
  for (const int s : kLengths)
    for (const bool causal : {true, false})
      for (const Starts& starts : document_cases(s)) {
        expect_forward_covers<64>(s, causal, starts);
        expect_forward_covers<256>(s, causal, starts);
      }
}

// Walks as attend_tiles_backward does, in the order of tickets, and expects the turns of each tile
// to count from 0, the last of them that of the first block that the tile attends to.
template <int D, bool kCompact>
void expect_backward_covers(int s, bool causal, const Starts& starts) {
  using Tile = BackwardTile<D, kCompact>;
  MetPairs pairs(s, causal, starts);
  const FirstKeys& first_keys = pairs.first_keys;
  const int blocks = tiles_of(s, Tile::kKeys), tiles = tiles_of(s, Tile::kQueries);
  std::vector<int> turns(tiles), last(tiles, -1);
  for (int block = blocks - 1; block >= 0; --block) {
    const int key_begin = block * Tile::kKeys;
    const int first = first_query_tile(key_begin, Tile::kQueries, causal);
    ASSERT_TRUE(first_keys.tile_reaches(first, Tile::kQueries, key_begin + Tile::kKeys))
        << "a block without a tile would leave dK and dV unwritten";
    int end = first;
    while (end < tiles && first_keys.tile_reaches(end, Tile::kQueries, key_begin + Tile::kKeys))
      ++end;
    for (int tile = first; tile < end; ++tile) {
      ASSERT_EQ(turn_of(tile, block, Tile::kQueries, Tile::kKeys, s, causal), turns[tile]++)
          << "tile " << tile << ", block " << block << ", " << s << " positions";
      last[tile] = block;
      for (int row = 0; row < Tile::kKeys; row += Tile::kWarpKeys)
        for (int part = 0; part < Tile::kQueries; part += Tile::kPart) {
          const int query_begin = tile * Tile::kQueries + part, warp_key = key_begin + row;
          if (all_masked(query_begin, Tile::kPart, warp_key, s, causal) ||
              first_keys.all_behind(query_begin, warp_key + Tile::kWarpKeys))
            continue;
          const bool masked = needs_mask(query_begin, warp_key, Tile::kWarpKeys, s, causal) ||
                              first_keys.cut(query_begin + Tile::kPart, warp_key);
          for (int query = query_begin; query < query_begin + Tile::kPart; ++query)
            for (int key = warp_key; key < warp_key + Tile::kWarpKeys; ++key) {
              if (!masked || pairs.attend(query, key)) pairs.meet(query, key);
            }
        }
    }
  }
  for (int tile = 0; tile < tiles; ++tile)
    EXPECT_EQ(last[tile], first_keys.first_key_tile(tile * Tile::kQueries, Tile::kKeys));
  pairs.expect_each_once();
}

TEST(AttentionTiles, BackwardMeetsEachPairOnceAndInTurn) {
  for (const int s : kLengths)
    for (const bool causal : {true, false})
      for (const Starts& starts : document_cases(s)) {
        expect_backward_covers<64, false>(s, causal, starts);
        expect_backward_covers<128, false>(s, causal, starts);
        expect_backward_covers<128, true>(s, causal, starts);
        expect_backward_covers<256, false>(s, causal, starts);
        expect_backward_covers<256, true>(s, causal, starts);
      }
}

TEST(AttentionTiles, DropoutBitsAreThoseOfTheElement) {
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) {
      const int row = fragment_row(lane) + 8 * (e / 2), column = fragment_column(lane) + e % 2;
      for (const int tile : {0, 1}) {
        const KeyOctet forward = forward_octet(forward_source(lane, e, tile));
        EXPECT_EQ(forward.tile, tile);
        EXPECT_EQ(forward.query, row) << lane << ", " << e;
        EXPECT_EQ(forward_bit(lane, e), column) << lane << ", " << e;
        const QueryOctet backward = backward_octet(backward_source(lane, e, tile));
        EXPECT_EQ(backward.tile, tile);
        EXPECT_EQ(backward.query, column) << lane << ", " << e;
        EXPECT_EQ(backward.key + backward_bit(lane), row) << lane << ", " << e;
      }
    }
  // The kernels shift once for both elements of a row.
  for (int lane = 0; lane < 32; ++lane)
    for (const int e : {0, 2}) {
      EXPECT_EQ(forward_source(lane, e, 1), forward_source(lane, e + 1, 1));
      EXPECT_EQ(forward_bit(lane, e) + 1, forward_bit(lane, e + 1));
    }
}

TEST(AttentionWorkspace, HoldsStatisticsTurnsAndPartialSums) {
  constexpr std::int64_t kS = 100, kB = 3, kHeads = 5, kD = 72;
  const auto layout = attention_backward_layout(DType::bf16, kS, kB, kHeads, kD);
  EXPECT_GE(layout.turns, layout.statistics + 8 * kB * kHeads * kS);
  EXPECT_EQ(layout.turns_bytes, 4u * (1 + kB * kHeads * 4));
  EXPECT_GE(layout.partial_dq, layout.turns + layout.turns_bytes);
  EXPECT_EQ(layout.partial_dq % 256, 0u);
  EXPECT_GE(layout.end, layout.partial_dq + 4u * kB * kHeads * 128 * 80);
  EXPECT_EQ(attention_backward_workspace(DType::f32, kS, kB, kHeads, kD), layout.turns);
  // Where query heads share keys and values: dK and dV of each query head.
  const auto grouped = attention_backward_layout(DType::bf16, kS, kB, 6, kD, 2);
  EXPECT_EQ(attention_backward_layout(DType::bf16, kS, kB, 6, kD, 6).end, grouped.key_gradients);
  EXPECT_EQ(grouped.key_gradients % 256, 0u);
  EXPECT_GE(grouped.end, grouped.key_gradients + 2u * 2 * kS * kB * 6 * kD);
  EXPECT_EQ(attention_backward_workspace(DType::f32, kS, kB, 6, kD, 2), grouped.turns);
}

}  // namespace
}  // namespace trireme::kernels::cuda
