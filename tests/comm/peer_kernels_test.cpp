#include "comm/peer/peer_kernels.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace trireme::comm {
namespace {

constexpr PeerLane kLanes[] = {PeerLane::compute, PeerLane::overlapped};

TEST(PeerBlocks, EveryFlagHasASeparatePlace) {
  std::set<int> flags;
  for (const PeerLane lane : kLanes)
    for (int block = 0; block < kPeerBlocks; ++block)
      for (int from = 0; from < kMaxPeers; ++from) {
        const int flag = peer_flag(lane, block, from);
        EXPECT_GE(flag, 0);
        EXPECT_LT(flag, kPeerFlags);
        EXPECT_TRUE(flags.insert(flag).second) << block << ", " << from;
      }
  for (const CopyFlag what : {CopyFlag::arrived, CopyFlag::consumed})
    for (int from = 0; from < kMaxPeers; ++from) {
      EXPECT_LT(copy_flag(what, from), kAllFlags);
      EXPECT_TRUE(flags.insert(copy_flag(what, from)).second) << from;
    }
}

TEST(PeerBlocks, EpochsWrapAroundAfterTheLast) {
  constexpr std::uint32_t kLast = 0xFFFFFFFFu;
  EXPECT_FALSE(flag_reached(0, 1));
  EXPECT_TRUE(flag_reached(1, 1));
  EXPECT_TRUE(flag_reached(2, 1)) << "a rank may be one barrier ahead";
  EXPECT_FALSE(flag_reached(kLast - 1, kLast));
  EXPECT_FALSE(flag_reached(kLast, 0));
  EXPECT_TRUE(flag_reached(0, kLast));
  EXPECT_TRUE(flag_reached(0, 0));
  EXPECT_FALSE(flag_reached(0, 1));
}

TEST(PeerBlocks, AreNoMoreThanThereIsWorkFor) {
  for (const PeerLane lane : kLanes) {
    const int most = lane == PeerLane::compute ? kPeerBlocks : kPeerBlocksOverlapped;
    EXPECT_EQ(peer_blocks(lane, 1, 4), 1);
    EXPECT_EQ(peer_blocks(lane, 4 * kPeerThreads, 4), 1);
    EXPECT_EQ(peer_blocks(lane, 4 * kPeerThreads + 1, 4), 2);
    EXPECT_EQ(peer_blocks(lane, std::int64_t{1} << 40, 1), most);
    EXPECT_LE(most, kPeerBlocks) << "there are flags for so many";
  }
}

/// How often each of `vectors` vectors is moved by all threads of all blocks.
template <int kUnroll>
std::vector<int> visits(PeerLane lane, std::int64_t vectors) {
  std::vector<int> count(vectors, 0);
  const int blocks = peer_blocks(lane, vectors, kUnroll);
  for (int block = 0; block < blocks; ++block)
    for (int thread = 0; thread < kPeerThreads; ++thread)
      for_each_batch<kUnroll>(block, blocks, thread, vectors, [&](std::int64_t first) {
        for (int u = 0; u < kUnroll; ++u)
          if (first + u * kPeerThreads < vectors) ++count[first + u * kPeerThreads];
      });
  return count;
}

TEST(PeerBlocks, EveryVectorIsMovedOnce) {
  for (const PeerLane lane : kLanes) {
    for (const std::int64_t vectors : {1, 511, 512, 513, 2048, 2049, 70000, 300007}) {
      const std::vector<int> once(vectors, 1);
      EXPECT_EQ(visits<1>(lane, vectors), once) << vectors;
      EXPECT_EQ(visits<2>(lane, vectors), once) << vectors;
      EXPECT_EQ(visits<4>(lane, vectors), once) << vectors;
    }
  }
}

}  // namespace
}  // namespace trireme::comm
