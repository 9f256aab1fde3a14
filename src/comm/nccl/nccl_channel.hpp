// One NCCL communicator and what watches over it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/nccl/nccl.hpp"
#include "comm/nccl/operation_queue.hpp"
#include "comm/watchdog.hpp"
#include "core/cuda/check.hpp"

namespace trireme::comm {

/// Events that are used again once their last owner has let go of them.
class EventPool {
 public:
  std::shared_ptr<cuda::Event> take();

 private:
  struct Free {
    std::mutex mutex;
    std::vector<std::unique_ptr<cuda::Event>> events;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

/// A NCCL communicator whose operations the watchdog follows.
class NcclChannel final : public Watched {
 public:
  struct Settings {
    std::string name;  ///< "group 'data', rank 2 of 8", for messages
    int rank = 0;
    int size = 1;
    int most_blocks = 0;  ///< thread blocks of an operation at most; 0 leaves it to NCCL
    Clock::duration timeout{};
  };

  /// Joins the other ranks that were given `id`. Collective over them.
  NcclChannel(const ncclUniqueId& id, Settings settings);
  /// Leaves in order, or, when an exception is on its way, by ending what is still running: other
  /// ranks need not come here.
  ~NcclChannel() override;
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  /// Queues the NCCL operation that `call(handle)` asks for on `stream`; the event is done when the
  /// operation is. `what` and `bytes` say in messages what it was.
  template <typename Call>
  std::shared_ptr<cuda::Event> queue(const char* what, std::size_t bytes, cudaStream_t stream,
                                     Call&& call) {
    begin(what, bytes);
    return end(what, call(handle_), stream);
  }

  std::string complaint(Clock::time_point now) override;

 private:
  void begin(const char* what, std::size_t bytes);
  std::shared_ptr<cuda::Event> end(const char* what, ncclResult_t code, cudaStream_t stream);
  /// What NCCL or CUDA report at `now`; retires what is done.
  std::string failure(Clock::time_point now);

  const Settings settings_;
  const std::shared_ptr<Watchdog> watchdog_ = Watchdog::shared();
  int device_ = 0;
  ncclComm_t handle_ = nullptr;
  EventPool events_;
  std::mutex mutex_;  ///< of what follows, which the watchdog reads
  OperationQueue<cuda::Event> operations_;
  std::optional<Clock::time_point> failed_since_;
};

}  // namespace trireme::comm
