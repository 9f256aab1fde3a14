#include "kernels/cuda/attention/tiles.hpp"

#include <gtest/gtest.h>

#include <array>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention_workspace.hpp"

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

// Walks as attend_tiles does, and expects each pair that attends to be met once, unmasked.
template <int D>
void expect_forward_covers(int s, bool causal) {
  using Tile = ForwardTile<D>;
  std::vector<int> met(s * s);
  for (int block = 0; block < tiles_of(s, Tile::kQueries); ++block) {
    const int query_begin = block * Tile::kQueries;
    const int end = keys_end(s, query_begin + Tile::kQueries, causal);
    for (int warp = 0; warp < Tile::kWarps; ++warp) {
      const int warp_query = query_begin + warp * Tile::kWarpQueries;
      bool first = true;
      for (int tile = tiles_of(end, Tile::kKeys) - 1; tile >= 0; --tile) {
        const int key_begin = tile * Tile::kKeys;
        if (all_masked(warp_query, Tile::kWarpQueries, key_begin, s, causal)) continue;
        const bool masked = needs_mask(warp_query, key_begin, Tile::kKeys, s, causal);
        for (int query = warp_query; query < warp_query + Tile::kWarpQueries; ++query) {
          if (first) {
            EXPECT_TRUE(attends(query, key_begin, s, causal))
                << "query " << query << " of " << s << " begins without a key";
          }
          for (int key = key_begin; key < key_begin + Tile::kKeys; ++key) {
            if (masked && !attends(query, key, s, causal)) continue;
            ASSERT_TRUE(attends(query, key, s, causal)) << query << ", " << key << " of " << s;
            if (query < s) ++met[query * s + key];
          }
        }
        first = false;
      }
    }
  }
  for (int query = 0; query < s; ++query)
    for (int key = 0; key < s; ++key)
      ASSERT_EQ(met[query * s + key], attends(query, key, s, causal))
          << query << ", " << key << " of " << s;
}

TEST(AttentionTiles, ForwardMeetsEachPairOnce) {
  for (const int s : kLengths)
    for (const bool causal : {true, false}) {
      expect_forward_covers<64>(s, causal);
      expect_forward_covers<256>(s, causal);
    }
}

// Walks as attend_tiles_backward does, in the order of tickets, and expects the turns of each tile
// to count from 0, the last of them key block 0's.
template <int D, bool kCompact>
void expect_backward_covers(int s, bool causal) {
  using Tile = BackwardTile<D, kCompact>;
  const int blocks = tiles_of(s, Tile::kKeys), tiles = tiles_of(s, Tile::kQueries);
  std::vector<int> met(s * s), turns(tiles), last(tiles, -1);
  for (int block = blocks - 1; block >= 0; --block) {
    const int key_begin = block * Tile::kKeys;
    for (int tile = first_query_tile(key_begin, Tile::kQueries, causal); tile < tiles; ++tile) {
      ASSERT_EQ(turn_of(tile, block, Tile::kQueries, Tile::kKeys, s, causal), turns[tile]++)
          << "tile " << tile << ", block " << block << ", " << s << " positions";
      last[tile] = block;
      for (int row = 0; row < Tile::kKeys; row += Tile::kWarpKeys)
        for (int part = 0; part < Tile::kQueries; part += Tile::kPart) {
          const int query_begin = tile * Tile::kQueries + part, warp_key = key_begin + row;
          if (all_masked(query_begin, Tile::kPart, warp_key, s, causal)) continue;
          const bool masked = needs_mask(query_begin, warp_key, Tile::kWarpKeys, s, causal);
          for (int query = query_begin; query < query_begin + Tile::kPart; ++query)
            for (int key = warp_key; key < warp_key + Tile::kWarpKeys; ++key) {
              if (masked && !attends(query, key, s, causal)) continue;
              ASSERT_TRUE(attends(query, key, s, causal)) << query << ", " << key << " of " << s;
              if (query < s) ++met[query * s + key];
            }
        }
    }
  }
  EXPECT_EQ(last, std::vector<int>(tiles, 0));
  for (int query = 0; query < s; ++query)
    for (int key = 0; key < s; ++key)
      ASSERT_EQ(met[query * s + key], attends(query, key, s, causal))
          << query << ", " << key << " of " << s;
}

TEST(AttentionTiles, BackwardMeetsEachPairOnceAndInTurn) {
  for (const int s : kLengths)
    for (const bool causal : {true, false}) {
      expect_backward_covers<64, false>(s, causal);
      expect_backward_covers<128, false>(s, causal);
      expect_backward_covers<128, true>(s, causal);
      expect_backward_covers<256, false>(s, causal);
      expect_backward_covers<256, true>(s, causal);
    }
}

TEST(AttentionTiles, DropoutBitsAreThoseOfTheElement) {
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) {
      const int row = fragment_row(lane) + 8 * (e / 2), column = fragment_column(lane) + e % 2;
      const KeyQuad forward = forward_quad(forward_source(lane, e));
      EXPECT_EQ(forward.key % 4, 0);
      EXPECT_EQ(forward.query, row) << lane << ", " << e;
      EXPECT_EQ(forward.key + forward_bit(lane, e), column) << lane << ", " << e;
      const KeyQuad backward = backward_quad(backward_source(lane, e));
      EXPECT_EQ(backward.key % 4, 0);
      EXPECT_EQ(backward.query, column) << lane << ", " << e;
      EXPECT_EQ(backward.key + backward_bit(lane), row) << lane << ", " << e;
    }
  // The kernels shift once for both elements of a row.
  for (int lane = 0; lane < 32; ++lane)
    for (const int e : {0, 2}) {
      EXPECT_EQ(forward_source(lane, e), forward_source(lane, e + 1));
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
}

}  // namespace
}  // namespace trireme::kernels::cuda
