// The operations of one communicator on the GPU, watched for time-outs and errors.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace trireme::comm
