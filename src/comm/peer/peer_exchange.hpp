// Collectives of ranks whose GPUs reach each other's memory, without NCCL: a group of tensor ranks
// exchanges a few megabytes several times a layer, where NCCL takes about twice as long as the
// links need.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/watched_operations.hpp"
#include "comm/peer/peer_kernels.hpp"
#include "comm/peer/peer_memory.hpp"

namespace trireme::comm {

/// What a group exchanges through peer memory. The watchdog follows the operations: one that has
/// been the oldest of its lane for the timeout ends the job.
class PeerExchange {
 public:
  using Duration = Watched::Clock::duration;

  /// Null, on all ranks, where peer memory cannot be used: see peers_reach_each_other() and
  /// PeerMemory::open(). `description` is for messages; `ranks` must outlive the result.
  /// Collective.
  static std::unique_ptr<PeerExchange> make(MpiCommunicator& ranks, const std::string& description,
                                            Duration timeout);
  /// Collective, as PeerMemory's; what share() returned must be gone.
  ~PeerExchange();
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  /// Lets operations use [base, base + bytes) until the result is destroyed; see
  /// Communicator::share().
  std::unique_ptr<SharedMemory> share(void* base, std::size_t bytes);

  /// Lets operations beside the compute stream of at most `bytes` go by the copy engines, which
  /// leave all multiprocessors to what runs there, through the scratch memory at `base`, which is
  /// shared and lies at the same offset on every rank. Those are reduce-scatters, and all-reduces
  /// of two ranks: of more, each would receive more than through the kernels.
  void lend(void* base, std::size_t bytes);

  /// Queues an operation on `data`, size() parts of `part_bytes`, on `stream`, always the same one
  /// for a lane. Null when that is not for this path, on all ranks alike: memory that is not
  /// shared, or parts that are no whole number of vectors. The event is done when the operation is.
  std::shared_ptr<cuda::Event> queue(PeerKind kind, void* data, std::size_t part_bytes, DType dtype,
                                     PeerLane lane, cudaStream_t stream);

 private:
  class Share;
  /// Operations in their order, which is the same on all ranks.
  struct Lane {
    Lane(const std::string& description, Duration timeout, std::shared_ptr<const Ranks> ranks)
        : operations(description, timeout, std::move(ranks)) {}

    std::uint32_t epoch = 0;  ///< of the latest barrier
    WatchedOperations operations;
  };

  PeerExchange(MpiCommunicator& ranks, const std::string& description, Duration timeout);
  const PeerMemory* memory_of(const void* data, std::size_t bytes) const;
  std::uint32_t* flags_of(int rank) const;
  bool goes_by_copies(PeerKind kind, std::size_t bytes, PeerLane lane) const;
  /// Rank p's part of `data`, or all of it, goes to a place in rank p's scratch memory that only
  /// this rank writes, once rank p has read what came there before; then every rank sums what came.
  void queue_copies(PeerKind kind, std::byte* data, std::size_t part_bytes, DType dtype,
                    cudaStream_t stream);

  MpiCommunicator& ranks_;
  std::unique_ptr<void, cudaError_t (*)(void*)> flags_{nullptr, &cudaFree};
  std::unique_ptr<PeerMemory> peer_flags_;  ///< gone before the flags
  std::vector<const PeerMemory*> shared_;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::uint32_t copies_ = 0;  ///< queued so far
  std::array<Lane, kPeerLanes> lanes_;
};

}  // namespace trireme::comm
