// Collectives in which each rank's kernel reads and writes the memory of the other ranks' GPUs: how
// an exchange is divided into thread blocks and flags (arithmetic that host tests check), and the
// launchers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/peer_terms.hpp"
#include "core/philox.hpp"
#include "core/tensor.hpp"

struct CUstream_st;

namespace trireme::comm {

// Groups have 2, 4 or 8 ranks: kMaxPeers at most.
inline constexpr int kPeerThreads = 512;
/// Thread blocks of an exchange on the compute stream, and of one that overlaps with GEMMs there
/// and takes SMs from them. With fewer the exchange outlasts the GEMM: 8 blocks cost 18 % of a step
/// of 1.5B's shapes on two H200s.
inline constexpr int kPeerBlocks = 32;
inline constexpr int kPeerBlocksOverlapped = 32;
/// Bytes of one load or store of a thread.
inline constexpr std::int64_t kPeerVectorBytes = 16;

/// Exchanges of one lane are serialized; those of different lanes may run concurrently.
enum class PeerLane { compute = 0, overlapped = 1 };
inline constexpr int kPeerLanes = 2;

/// Flags of a rank, written by the others: one for each lane, block and rank.
inline constexpr int kPeerFlags = kPeerLanes * kPeerBlocks * kMaxPeers;

/// The flag of a rank's block `block` that the same block of rank `from` writes.
TRIREME_HOST_DEVICE constexpr int peer_flag(PeerLane lane, int block, int from) {
  return (static_cast<int>(lane) * kPeerBlocks + block) * kMaxPeers + from;
}

/// Flags of exchanges by copy engines. Of a reduce-scatter: a rank's copy has arrived, and a rank
/// has read what arrived. Of an all-gather: a rank's buffer may be written, and a rank's part has
/// been written to it.
enum class CopyFlag { arrived, consumed, writable, gathered };
inline constexpr int kCopyFlags = 4 * kMaxPeers;
inline constexpr int kAllFlags = kPeerFlags + kCopyFlags;
/// After the flags: the word of PeerOperation::base of a lane.
constexpr int epoch_base(PeerLane lane) { return kAllFlags + static_cast<int>(lane); }

/// The flag that rank `from` writes.
constexpr int copy_flag(CopyFlag what, int from) {
  return kPeerFlags + static_cast<int>(what) * kMaxPeers + from;
}

/// Thread blocks for `vectors` vectors with `unroll` vectors in flight per thread; at least one.
constexpr int peer_blocks(PeerLane lane, std::int64_t vectors, int unroll) {
  const std::int64_t max_blocks = lane == PeerLane::compute ? kPeerBlocks : kPeerBlocksOverlapped;
  const std::int64_t batch = std::int64_t{kPeerThreads} * unroll;
  const std::int64_t useful = (vectors + batch - 1) / batch;
  return static_cast<int>(useful < 1 ? 1 : useful < max_blocks ? useful : max_blocks);
}

/// Calls body(first) for each batch of a thread: the vectors first + u * kPeerThreads, u < kUnroll,
/// that are below `vectors`.
template <int kUnroll, typename Body>
TRIREME_HOST_DEVICE void for_each_batch(int block, int blocks, int thread, std::int64_t vectors,
                                        Body&& body) {
  const std::int64_t batch = std::int64_t{kPeerThreads} * kUnroll;
  for (std::int64_t first = block * batch + thread; first < vectors; first += blocks * batch)
    body(first);
}

// ---------------------------------------------------------------------------- launchers

/// Arguments of an exchange on one rank. All ranks pass the same sizes, lane and epoch; in a CUDA
/// graph all add the same base.
struct PeerOperation {
  std::byte* data[kMaxPeers] = {};       ///< the whole buffer of every rank
  std::uint32_t* flags[kMaxPeers] = {};  ///< kAllFlags words of every rank
  int rank = 0;
  int ranks = 1;             ///< 2, 4 or 8
  std::int64_t vectors = 0;  ///< of one rank's part; the buffer has `ranks` parts
  PeerLane lane = PeerLane::compute;
  std::uint32_t epoch = 0;  ///< of the first barrier; the second has epoch + 1
  /// Added to `epoch`: in this rank's memory, where a CUDA graph finds that of each launch; null:
  /// 0.
  const std::uint32_t* base = nullptr;
};

/// The operation on part `rank` of the buffers.
enum class PeerKind {
  reduce_scatter,  ///< sums it over all ranks into this rank's buffer
  all_gather,      ///< copies this rank's part into all buffers
  all_reduce       ///< sums it over all ranks into all buffers
};

/// Enqueues the exchange on `stream`. Sums accumulate in rank order in fp32 (fp64 for fp64) and are
/// rounded once: deterministic, and the same bits on all ranks.
///
/// Begins and ends with a barrier of every block with the same block of the other ranks. After the
/// first one, earlier work is complete on every rank: inputs are ready, and outputs are not in use.
/// After the second, all ranks have read their inputs and written their outputs.
void launch_peer_operation(PeerKind kind, const PeerOperation& operation, DType dtype,
                           CUstream_st* stream);

/// Enqueues a barrier of one thread block on `stream`: after it, the work before it is complete on
/// every rank. Has the epoch of the operation, whose data and sizes it does not use.
void launch_peer_barrier(const PeerOperation& operation, CUstream_st* stream);

/// Arguments of a sum of vectors that have arrived in this rank's memory.
struct PeerSum {
  const std::byte* terms[kMaxPeers] = {};
  int ranks = 1;                ///< 2, 4 or 8
  std::byte* result = nullptr;  ///< may be one of the terms
  std::int64_t vectors = 0;     ///< of each term
};

/// Enqueues the sum on `stream`: bit for bit that of launch_peer_operation().
void launch_peer_sum(const PeerSum& sum, DType dtype, CUstream_st* stream);

}  // namespace trireme::comm
