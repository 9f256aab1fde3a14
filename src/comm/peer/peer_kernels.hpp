// Collectives in which each rank's kernel reads and writes the memory of the other ranks' GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/peer/blocks.hpp"
#include "core/dtype.hpp"

namespace trireme::comm {

/// One exchange as a rank sees it. All ranks launch it with the same sizes, lane and epoch.
struct PeerOperation {
  std::byte* data[kMostPeers] = {};       ///< the whole buffer of every rank
  std::uint32_t* flags[kMostPeers] = {};  ///< kAllFlags words of every rank
  int rank = 0;
  int ranks = 1;             ///< 2, 4 or 8
  std::int64_t vectors = 0;  ///< of one rank's part; the buffer has `ranks` parts
  PeerLane lane = PeerLane::compute;
  std::uint32_t epoch = 0;  ///< of the barrier before; that behind has epoch + 1
};

/// What an exchange does with part `rank` of the buffers.
enum class PeerKind {
  reduce_scatter,  ///< sums it over all ranks into this rank's buffer
  all_gather,      ///< copies this rank's into all buffers
  all_reduce       ///< sums it over all ranks into all buffers
};

/// Queues the exchange on `stream`. Sums are taken in rank order in fp32 (fp64 for fp64) and
/// rounded once: the same bits on all ranks and every time.
///
/// Begins and ends with a barrier of every block with the same block of the other ranks. The first
/// one says that on every rank all that was queued before is done: that the parts to read are
/// there, and that nothing still uses those to be written. The second says that all ranks have read
/// and written what they wanted: what is queued next may overwrite what others read, and sees what
/// they wrote.
void launch_peer_operation(PeerKind kind, const PeerOperation& operation, DType dtype,
                           cudaStream_t stream);

/// Vectors of every rank, which lie in this rank's memory already.
struct PeerSum {
  const std::byte* terms[kMostPeers] = {};
  int ranks = 1;                ///< 2, 4 or 8
  std::byte* result = nullptr;  ///< may be one of the terms
  std::int64_t vectors = 0;     ///< of each term
};

/// Queues the sum on `stream`, with the bits that launch_peer_operation() gives.
void launch_peer_sum(const PeerSum& sum, DType dtype, cudaStream_t stream);

}  // namespace trireme::comm
