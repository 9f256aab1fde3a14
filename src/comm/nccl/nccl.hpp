// NCCL, loaded when a run first needs it: programs start without it, and runs on one GPU never load
// it; its communicators; and the operations in flight, which the watchdog observes.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "core/cuda/check.hpp"

namespace trireme::comm {

/// Reuses events that no longer have an owner.
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

/// Operations that run in the order in which they are enqueued. The watchdog ends the job when one
/// has been the oldest for the time-out, or on an asynchronous error.
class WatchedOperations final : public Watched {
 public:
  /// `name` is for messages: "group 'data', rank 2 of 8"; `ranks` take part. `failure`, called by
  /// the watchdog's thread, returns an asynchronous error, "" while there is none.
  WatchedOperations(std::string name, Clock::duration timeout, std::shared_ptr<const Ranks> ranks,
                    std::function<std::string()> failure = {});
  ~WatchedOperations() override;
  WatchedOperations(const WatchedOperations&) = delete;
  WatchedOperations& operator=(const WatchedOperations&) = delete;

  /// Enqueues an operation on `stream` by `call()`, which may throw; the event completes with the
  /// operation. `what` and `bytes` describe it in messages.
  template <typename Call>
  std::shared_ptr<cuda::Event> queue(const char* what, std::size_t bytes, cudaStream_t stream,
                                     Call&& call) {
    begin(what, bytes);
    try {
      call();
    } catch (...) {
      failed();
      throw;
    }
    return end(stream);
  }

  std::string problem(Clock::time_point now) override;
  /// Its ranks, while an operation has been the oldest for longer than an operation takes.
  std::optional<Ranks> awaited(Clock::time_point now) override;

 private:
  void begin(const char* what, std::size_t bytes);
  void failed();
  std::shared_ptr<cuda::Event> end(cudaStream_t stream);
  /// The error at `now`, "" when there is none; retires completed operations.
  std::string failure(Clock::time_point now);

  const std::string name_;
  const Clock::duration timeout_;
  const std::shared_ptr<const Ranks> ranks_;
  const std::function<std::string()> failure_;
  const std::shared_ptr<Watchdog> watchdog_ = Watchdog::shared();
  int device_ = 0;
  EventPool events_;
  std::mutex mutex_;  ///< of what follows, which the watchdog reads
  OperationQueue<cuda::Event> operations_;
  std::optional<Clock::time_point> failed_since_;
};

/// The functions that Trireme calls, with the types that nccl.h declares.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
};

/// The library, loaded by the first call. Throws Error (exit 1) naming the package to install when
/// it is missing.
const Nccl& nccl();

/// NCCL's text for `code`, with the last error on `handle` (which may be null).
std::string nccl_text(ncclResult_t code, ncclComm_t handle);

/// NCCL's names of ours. Throw InternalError for a type that ranks do not exchange.
ncclDataType_t nccl_type(DType dtype);
ncclRedOp_t nccl_operation(Reduce op);

/// A NCCL communicator whose operations the watchdog follows.
class NcclChannel {
 public:
  using Duration = Watched::Clock::duration;

  struct Settings {
    std::string name;  ///< "group 'data', rank 2 of 8", for messages
    int rank = 0;
    int size = 1;
    int max_blocks = 0;  ///< thread blocks of an operation at most; 0 leaves it to NCCL
    Duration timeout{};
    std::shared_ptr<const Ranks> ranks;  ///< as numbers of the world
  };

  /// Joins the other ranks that have `id`. Collective over them.
  NcclChannel(const ncclUniqueId& id, Settings settings);
  /// Destroys the communicator (collective), or aborts it during an exception, which other ranks
  /// may not have.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  /// Enqueues the NCCL operation of `call(handle)` on `stream`; the event completes with the
  /// operation. `what` and `bytes` describe it in messages.
  template <typename Call>
  std::shared_ptr<cuda::Event> queue(const char* what, std::size_t bytes, cudaStream_t stream,
                                     Call&& call) {
    return operations_->queue(what, bytes, stream, [&] { check(what, call(handle_)); });
  }

 private:
  /// Throws CommunicationError naming `what` unless `code` is ncclSuccess.
  void check(const char* what, ncclResult_t code) const;
  /// An asynchronous error; "" when there is none.
  std::string asynchronous_error() const;

  const Settings settings_;
  const std::shared_ptr<Watchdog> watchdog_ = Watchdog::shared();
  ncclComm_t handle_ = nullptr;
  std::optional<WatchedOperations> operations_;  ///< while the communicator is in use
};

}  // namespace trireme::comm
