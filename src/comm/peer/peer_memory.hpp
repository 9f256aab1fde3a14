// Memory of a GPU that the ranks of a group reach from their own GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/mpi/mpi_communicator.hpp"
#include "comm/peer/blocks.hpp"

namespace trireme::comm {

/// Whether the GPUs that the ranks of `ranks` have selected reach each other: 2, 4 or 8 ranks of
/// one node, on different GPUs with peer access between each two. Collective.
bool peers_reach_each_other(MpiCommunicator& ranks);

/// An allocation of cudaMalloc() of the same size on every rank, mapped into each other's address
/// space by CUDA IPC. Takes no memory of its own. CUDA maps whole blocks of 2 MiB: an allocation
/// should be a multiple of that, or it shares a block with others.
class PeerMemory final : public SharedMemory {
 public:
  /// Maps the allocations that begin at `base`, once every rank's GPU has done what it was asked
  /// before: what a rank queued to fill its own cannot overwrite what others put there. Null, on
  /// all ranks, where CUDA cannot share them: in a container without IPC, or where memory was not
  /// taken by cudaMalloc(). `ranks` must outlive the result. Collective.
  static std::unique_ptr<PeerMemory> open(MpiCommunicator& ranks, void* base, std::size_t bytes);
  /// Returns when no rank has this memory mapped any more, so that it may be freed: a mapping must
  /// not outlive what it maps. Collective, unless an exception is on its way, which other ranks
  /// need not have seen.
  ~PeerMemory() override;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Whether all of [data, data + bytes) lies in this rank's allocation.
  bool holds(const void* data, std::size_t bytes) const;
  /// Rank `peer`'s counterpart of `data`: at the same offset.
  std::byte* of_rank(int peer, const void* data) const {
    return bases_[peer] + (static_cast<const std::byte*>(data) - bases_[ranks_.rank()]);
  }

 private:
  PeerMemory(MpiCommunicator& ranks, void* base, std::size_t bytes);
  /// Maps the others' allocations, as far as that goes; whether all are there.
  bool map();
  void unmap();

  MpiCommunicator& ranks_;
  const std::size_t bytes_;
  std::byte* bases_[kMostPeers] = {};  ///< null where not mapped
};

}  // namespace trireme::comm
