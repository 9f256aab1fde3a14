// One NCCL communicator and what watches over it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/nccl/nccl.hpp"
#include "comm/nccl/watched_operations.hpp"

namespace trireme::comm {

/// A NCCL communicator whose operations the watchdog follows.
class NcclChannel {
 public:
  using Duration = Watched::Clock::duration;

  struct Settings {
    std::string name;  ///< "group 'data', rank 2 of 8", for messages
    int rank = 0;
    int size = 1;
    int most_blocks = 0;  ///< thread blocks of an operation at most; 0 leaves it to NCCL
    Duration timeout{};
    std::shared_ptr<const Ranks> ranks;  ///< as numbers of the world
  };

  /// Joins the other ranks that were given `id`. Collective over them.
  NcclChannel(const ncclUniqueId& id, Settings settings);
  /// Leaves in order, or, when an exception is on its way, by ending what is still running: other
  /// ranks need not come here.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  /// Queues the NCCL operation that `call(handle)` asks for on `stream`; the event is done when the
  /// operation is. `what` and `bytes` say in messages what it was.
  template <typename Call>
  std::shared_ptr<cuda::Event> queue(const char* what, std::size_t bytes, cudaStream_t stream,
                                     Call&& call) {
    return operations_->queue(what, bytes, stream, [&] { check(what, call(handle_)); });
  }

 private:
  /// Throws CommunicationError unless `code` says that `what` was queued.
  void check(const char* what, ncclResult_t code) const;
  /// An error that no call returned; "" when there is none.
  std::string asynchronous_error() const;

  const Settings settings_;
  const std::shared_ptr<Watchdog> watchdog_ = Watchdog::shared();
  ncclComm_t handle_ = nullptr;
  std::optional<WatchedOperations> operations_;  ///< while the communicator is in use
};

}  // namespace trireme::comm
