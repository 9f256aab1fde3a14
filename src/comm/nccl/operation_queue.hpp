// Which operation holds up a stream, and for how long.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace trireme::comm {

/// The operations of one communicator that are queued and not known to be done, oldest first. They
/// run in that order. `Mark` is a point in a stream that can tell whether it is done(): a CUDA
/// event.
template <typename Mark>
class OperationQueue {
 public:
  using Clock = std::chrono::steady_clock;

  struct Operation {
    const char* name = "";
    std::uint64_t number = 0;  ///< counts the communicator's operations from 1
    std::size_t bytes = 0;
    std::shared_ptr<Mark> end;  ///< null while the call that queues it has not returned
  };

  /// An operation is about to be queued.
  void begin(const char* name, std::size_t bytes, Clock::time_point now) {
    if (operations_.empty()) head_since_ = now;
    operations_.push_back({.name = name, .number = ++count_, .bytes = bytes, .end = nullptr});
  }
  /// The newest operation is queued, and done when `end` is.
  void queued(std::shared_ptr<Mark> end) { operations_.back().end = std::move(end); }
  /// The newest operation could not be queued.
  void failed() { operations_.pop_back(); }

  /// Forgets the operations that are done. Their successor has been at the head since `now`.
  void retire(Clock::time_point now) {
    while (!operations_.empty() && operations_.front().end && operations_.front().end->done()) {
      operations_.pop_front();
      head_since_ = now;
    }
  }

  /// The oldest operation, when it has been at the head for `timeout`; otherwise null. What waits
  /// behind it is not late, and a host that queues nothing makes nothing late.
  const Operation* overdue(Clock::time_point now, Clock::duration timeout) const {
    return !operations_.empty() && now - head_since_ >= timeout ? &operations_.front() : nullptr;
  }

 private:
  std::deque<Operation> operations_;
  Clock::time_point head_since_;
  std::uint64_t count_ = 0;
};

}  // namespace trireme::comm
