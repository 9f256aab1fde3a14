// Messages between two ranks whose GPUs reach each other's memory, without NCCL, whose receiver
// holds multiprocessors from the moment it waits.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "comm/nccl/watched_operations.hpp"
#include "comm/peer/peer_memory.hpp"

namespace trireme::comm {

/// One end of a route. The sender's copy engine puts a message into the receiver's mailbox, that of
/// the receiver from there to where it belongs. Neither takes a multiprocessor or the host. Throws
/// InternalError for messages larger than was announced.
class PeerRoute {
 public:
  using Duration = Watched::Clock::duration;

  /// This rank's end of the route between the two of `pair`. Null, at both ends, where peer memory
  /// cannot be used: see peers_reach_each_other() and PeerMemory::open(). Both ends take memory for
  /// a message of `most_bytes`; 0: none are to go this way. The watchdog follows the messages as
  /// `description`'s. Collective over `pair`.
  static std::unique_ptr<PeerRoute> open(std::unique_ptr<MpiCommunicator> pair,
                                         std::size_t most_bytes, const std::string& description,
                                         Duration timeout);
  /// Collective, as PeerMemory's.
  ~PeerRoute();
  PeerRoute(const PeerRoute&) = delete;
  PeerRoute& operator=(const PeerRoute&) = delete;

  /// Queues the route's next message on `stream`, always the same one, at the one end by send(), at
  /// the other by receive(). The event is done when `data` may be overwritten.
  std::shared_ptr<cuda::Event> send(const void* data, std::size_t bytes, cudaStream_t stream);
  /// The event is done when `data` holds the message.
  std::shared_ptr<cuda::Event> receive(void* data, std::size_t bytes, cudaStream_t stream);

 private:
  PeerRoute(std::unique_ptr<MpiCommunicator> pair, std::size_t most_bytes,
            const std::string& description, Duration timeout);
  /// The word in which `end` hears from the other, and its mailbox.
  std::uint32_t* flag_of(int end) const;
  std::byte* mailbox_of(int end) const;

  std::uint32_t next_message(std::size_t bytes);

  const std::unique_ptr<MpiCommunicator> pair_;
  const std::size_t most_bytes_;
  std::unique_ptr<void, cudaError_t (*)(void*)> block_{nullptr, &cudaFree};
  std::unique_ptr<PeerMemory> memory_;  ///< gone before the block
  std::uint32_t messages_ = 0;          ///< so far
  WatchedOperations operations_;
};

}  // namespace trireme::comm
