// Collectives and messages between ranks whose GPUs reach each other's memory, without NCCL. Tensor
// ranks exchange a few megabytes several times a layer: NCCL takes about twice the time that the
// links need. The receiver of a message occupies no SM while it waits, as NCCL's would.
//
// PeerMemory maps an allocation of every rank; flags in it are written and awaited by streams.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "comm/nccl/nccl.hpp"
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

/// Collectives of a group through peer memory. The watchdog ends the job when an operation has been
/// the oldest of its lane for the time-out.
class PeerExchange {
 public:
  using Duration = Watched::Clock::duration;

  /// Null, on all ranks, where peer memory cannot be used: see peers_reach_each_other() and
  /// PeerMemory::open(). `description` is for messages; `ranks` must outlive the result.
  /// Collective.
  static std::unique_ptr<PeerExchange> make(MpiCommunicator& ranks, const std::string& description,
                                            Duration timeout);
  /// Collective, as PeerMemory's; all registered buffers must be destroyed before.
  ~PeerExchange();
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  /// See Communicator::register_buffer().
  std::unique_ptr<RegisteredBuffer> register_buffer(void* base, std::size_t bytes);

  /// Lets overlapped operations of at least `min_bytes` use the copy engines, which leave all SMs
  /// to the compute stream, through staging memory at `base`, `bytes` large: registered, at the
  /// same offset on every rank. Used for reduce-scatters, and for all-reduces of two ranks; with
  /// more ranks an all-reduce would receive more bytes than through the kernels.
  void set_staging_buffer(void* base, std::size_t bytes, std::size_t min_bytes);

  /// Enqueues an operation on `data`, size() parts of `part_bytes`, on `stream`, always the same
  /// one for a lane. Null, on all ranks alike, when NCCL must do it: the memory is not registered,
  /// or the parts are not a multiple of a vector. The event completes with the operation.
  std::shared_ptr<cuda::Event> queue(PeerKind kind, void* data, std::size_t part_bytes, DType dtype,
                                     PeerLane lane, cudaStream_t stream);

  /// A reduce-scatter of the compute lane whose terms the next kernel on `stream` adds itself, see
  /// Communicator::reduce_scatter_terms(): a barrier, and where they lie. Null, on all ranks alike,
  /// where NCCL must do it, as for queue().
  std::shared_ptr<cuda::Event> queue_terms(void* data, std::size_t part_bytes, cudaStream_t stream,
                                           PeerTerms& terms);

  /// An all-gather of the overlapped lane by copy engines; `arrivals` tells a GEMM what has come so
  /// far. Null, on all ranks alike, where queue() should do it: the memory is not registered, or
  /// the operation is captured.
  std::shared_ptr<cuda::Event> queue_gather(void* data, std::size_t part_bytes, cudaStream_t stream,
                                            PartArrivals& arrivals);

  /// See Communicator::capture(); `stream` is that of the compute lane. What is queued meanwhile is
  /// done by kernels of the graph. Null where fail_capture() is called meanwhile.
  std::unique_ptr<CapturedCollectives> capture(cudaStream_t stream,
                                               const std::function<void()>& work);
  bool captures() const { return captured_.has_value(); }
  void fail_capture() { captured_->failed = true; }

 private:
  class Registration;
  class Graph;
  /// Operations in the order of enqueueing, which is the same on all ranks.
  struct Lane {
    Lane(const std::string& description, Duration timeout, std::shared_ptr<const Ranks> ranks)
        : operations(description, timeout, std::move(ranks)) {}

    std::uint32_t epoch = 0;  ///< of the latest barrier
    WatchedOperations operations;
  };

  /// What a capture has added to a graph.
  struct Captured {
    std::array<std::uint32_t, kPeerLanes> epochs = {};
    std::size_t bytes = 0;
    bool failed = false;
  };

  PeerExchange(MpiCommunicator& ranks, const std::string& description, Duration timeout);
  const PeerMemory* memory_of(const void* data, std::size_t bytes) const;
  /// Enqueues an operation by `call()`; the watchdog follows it unless it is captured.
  template <typename Call>
  std::shared_ptr<cuda::Event> enqueue(PeerKind kind, std::size_t bytes, PeerLane lane,
                                       cudaStream_t stream, Call&& call);
  /// An operation of `vectors` vectors a part with the lane's next `epochs` epochs, without data.
  PeerOperation next_operation(PeerLane lane, std::int64_t vectors, std::uint32_t epochs);
  std::uint32_t* flags_of(int rank) const;
  bool goes_by_copies(PeerKind kind, std::size_t bytes, PeerLane lane) const;
  /// queue() by copies, in pieces that staging memory has room for.
  void queue_copies(PeerKind kind, std::byte* data, std::size_t part_bytes, DType dtype,
                    cudaStream_t stream);
  /// Copies `bytes` at data + p * stride to this rank's slot in rank p's staging memory, once rank
  /// p has read what lay there before; then every rank sums its slots.
  void queue_piece(std::byte* data, std::size_t stride, std::size_t bytes, DType dtype,
                   cudaStream_t stream);
  bool whole_vectors(const void* data, std::size_t part_bytes) const;

  MpiCommunicator& ranks_;
  std::unique_ptr<void, cudaError_t (*)(void*)> flags_{nullptr, &cudaFree};
  std::unique_ptr<PeerMemory> peer_flags_;  ///< gone before the flags
  std::vector<const PeerMemory*> registered_;
  void* staging_ = nullptr;
  std::size_t staging_bytes_ = 0, min_copied_bytes_ = 0;
  // Queued so far.
  std::uint32_t copies_ = 0, gathers_ = 0;
  std::optional<Captured> captured_;  ///< in a capture
  std::array<Lane, kPeerLanes> lanes_;
};

/// One end of a P2P route. The sender's copy engine writes a message to the receiver's mailbox, and
/// the receiver's copies it to its destination; no SM and no host thread takes part.
class PeerRoute {
 public:
  using Duration = Watched::Clock::duration;

  /// This rank's end of the route between the two of `pair`. Null, at both ends, where peer memory
  /// cannot be used: see peers_reach_each_other() and PeerMemory::open(). Both ends allocate a
  /// mailbox of `max_bytes`, through which larger messages go in parts; null also when that is 0.
  /// `description` is for messages. Collective over `pair`.
  static std::unique_ptr<PeerRoute> open(std::unique_ptr<MpiCommunicator> pair,
                                         std::size_t max_bytes, const std::string& description,
                                         Duration timeout);
  /// Collective, as PeerMemory's.
  ~PeerRoute();
  PeerRoute(const PeerRoute&) = delete;
  PeerRoute& operator=(const PeerRoute&) = delete;

  /// Enqueues the route's next message on `stream`, always the same one: send() at one end,
  /// receive() at the other. The event completes when `data` may be overwritten.
  std::shared_ptr<cuda::Event> send(const void* data, std::size_t bytes, cudaStream_t stream);
  /// The event completes when `data` holds the message.
  std::shared_ptr<cuda::Event> receive(void* data, std::size_t bytes, cudaStream_t stream);

 private:
  PeerRoute(std::unique_ptr<MpiCommunicator> pair, std::size_t max_bytes,
            const std::string& description, Duration timeout);
  /// The flag that the other end writes for `end`, and the mailbox of `end`.
  std::uint32_t* flag_of(int end) const;
  std::byte* mailbox_of(int end) const;

  /// queue(first byte, bytes, number) for each part of the route's next message, alike at both
  /// ends.
  template <typename Queue>
  void for_each_part(std::size_t bytes, Queue&& queue);

  const std::unique_ptr<MpiCommunicator> pair_;
  const std::size_t max_bytes_;
  std::unique_ptr<void, cudaError_t (*)(void*)> block_{nullptr, &cudaFree};
  std::unique_ptr<PeerMemory> memory_;  ///< gone before the block
  std::uint32_t parts_ = 0;             ///< of messages so far
  WatchedOperations operations_;
};

}  // namespace trireme::comm
