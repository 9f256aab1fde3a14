// Memory of a GPU that the ranks of a group reach from their own GPUs, and flags in it that streams
// write and wait for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/mpi/mpi_communicator.hpp"
#include "comm/peer/peer_kernels.hpp"

namespace trireme::comm {

/// Whether the GPUs that the ranks of `ranks` have selected reach each other: 2, 4 or 8 ranks of
/// one node, on different GPUs with peer access between each two. Collective.
bool peers_reach_each_other(MpiCommunicator& ranks);

/// An allocation of cudaMalloc() of the same size on every rank, mapped into each other's address
/// space by CUDA IPC. CUDA maps whole blocks of 2 MiB: an allocation should be a multiple of that,
/// or it exposes the other allocations in its last block.
class PeerMemory final : public RegisteredBuffer {
 public:
  /// Maps the allocations that begin at `base`, after synchronizing every rank's GPU, so that
  /// earlier work of a rank cannot overwrite what its peers write. Null, on all ranks, where CUDA
  /// IPC fails: in a container without IPC, or for memory that is not from cudaMalloc(). `ranks`
  /// must outlive the result. Collective.
  static std::unique_ptr<PeerMemory> open(MpiCommunicator& ranks, void* base, std::size_t bytes);
  /// Unmaps; returns when no rank has this memory mapped, so that it may be freed. Collective,
  /// except during an exception, which other ranks may not have.
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
  /// Maps the other ranks' allocations; returns whether all could be mapped.
  bool map();
  void unmap();

  MpiCommunicator& ranks_;
  const std::size_t bytes_;
  std::byte* bases_[kMaxPeers] = {};  ///< null where not mapped
};

/// Enqueues a write of `epoch` to `flag` (this rank's or a peer's) after all earlier work on
/// `stream`; needs no kernel, and therefore no free SM.
void raise_flag(cudaStream_t stream, std::uint32_t* flag, std::uint32_t epoch);

/// Makes later work on `stream` wait until `flag` has reached `epoch`; see peer_reached().
void await_flag(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t epoch);

}  // namespace trireme::comm
