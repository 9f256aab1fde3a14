// How an exchange through peer memory is cut into thread blocks, and how blocks of different ranks
// know each other: arithmetic that the host can check.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/philox.hpp"

namespace trireme::comm {

/// Ranks that can exchange: 2, 4 or 8.
inline constexpr int kMostPeers = 8;
inline constexpr int kPeerThreads = 512;
/// Blocks of an exchange on the compute stream, which has the GPU to itself, and of one beside it,
/// which takes its multiprocessors from a product. With fewer the exchange outlasts the product: 8
/// cost 18 % of a step of 1.5B's shapes on two H200s.
inline constexpr int kPeerBlocks = 32;
inline constexpr int kPeerBlocksBeside = 32;
/// What a thread moves at a time.
inline constexpr std::int64_t kPeerVectorBytes = 16;

/// Exchanges of one lane run one after the other; those of different lanes may run at once.
enum class PeerLane { compute = 0, beside = 1 };
inline constexpr int kPeerLanes = 2;

/// The words in which a rank hears from the others: one for each lane, block and rank.
inline constexpr int kPeerFlags = kPeerLanes * kPeerBlocks * kMostPeers;

/// The word in which a rank's block `block` hears from the same block of rank `from`.
TRIREME_HOST_DEVICE constexpr int peer_flag(PeerLane lane, int block, int from) {
  return (static_cast<int>(lane) * kPeerBlocks + block) * kMostPeers + from;
}

/// What a rank says of an exchange by copy engines: that its copy to a rank has arrived there, and
/// that it has read what a rank had sent.
enum class CopyFlag { arrived = 0, consumed = 1 };
inline constexpr int kAllFlags = kPeerFlags + 2 * kMostPeers;

/// The word in which a rank hears that of rank `from`.
constexpr int copy_flag(CopyFlag what, int from) {
  return kPeerFlags + static_cast<int>(what) * kMostPeers + from;
}

/// In front of the mailbox of a PeerRoute: its flag, with a cache line of its own.
inline constexpr std::size_t kPeerRouteFlagBytes = 256;

/// What each end of a PeerRoute allocates for messages of `most_bytes`: whole blocks of what CUDA
/// maps at a time.
constexpr std::size_t peer_route_bytes(std::size_t most_bytes) {
  constexpr std::size_t kBlock = std::size_t{2} << 20;
  return (kPeerRouteFlagBytes + most_bytes + kBlock - 1) / kBlock * kBlock;
}

/// Whether a flag that shows `shown` has come to `epoch`. Epochs count up and start again at 0
/// after 2^32; two that are compared are never half of that apart.
TRIREME_HOST_DEVICE constexpr bool peer_reached(std::uint32_t shown, std::uint32_t epoch) {
  return static_cast<std::int32_t>(shown - epoch) >= 0;
}

/// Blocks for `vectors` vectors, `unroll` of them a thread at a time; at least one.
constexpr int peer_blocks(PeerLane lane, std::int64_t vectors, int unroll) {
  const std::int64_t most = lane == PeerLane::compute ? kPeerBlocks : kPeerBlocksBeside;
  const std::int64_t batch = std::int64_t{kPeerThreads} * unroll;
  const std::int64_t useful = (vectors + batch - 1) / batch;
  return static_cast<int>(useful < 1 ? 1 : useful < most ? useful : most);
}

/// Calls body(first) for what a thread moves: the vectors first + u * kPeerThreads for u below
/// kUnroll, as far as they are below `vectors`.
template <int kUnroll, typename Body>
TRIREME_HOST_DEVICE void for_each_batch(int block, int blocks, int thread, std::int64_t vectors,
                                        Body&& body) {
  const std::int64_t batch = std::int64_t{kPeerThreads} * kUnroll;
  for (std::int64_t first = block * batch + thread; first < vectors; first += blocks * batch)
    body(first);
}

}  // namespace trireme::comm
