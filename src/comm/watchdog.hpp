// Ends the job when communication fails or stalls while the main thread is blocked.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace trireme::comm {

/// Ranks of the world, by number.
using Ranks = std::vector<int>;

/// An operation that can fail or stall while the main thread is blocked.
class Watched {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Watched() = default;
  /// The message of a failure or stall at `now`; empty while there is none. Called by the
  /// watchdog's thread.
  virtual std::string problem(Clock::time_point now) = 0;
  /// While it waits for other ranks: those that may be the cause, an empty list where they are not
  /// known. Empty optional while it does not wait. Called by any thread.
  virtual std::optional<Ranks> awaited(Clock::time_point now) = 0;
  /// For local work that other ranks wait for: the time from `now` within which it must progress,
  /// zero or less when it is stalled. Empty for everything else. Called by any thread.
  virtual std::optional<Clock::duration> progress_due(Clock::time_point) { return std::nullopt; }
};

/// `seconds` as a duration of the clock, limited to a century so that sums do not overflow.
Watched::Clock::duration to_duration(double seconds);

/// Why a collective does not complete.
struct StallDiagnosis {
  /// "no answer from rank 1 on node1"; "" when unknown
  std::string text;
  /// Positive when a rank does local work that progresses, such as writing a file: nothing is
  /// stalled, and the work must progress again within this time.
  Watched::Clock::duration progress_due{};
};

/// The process's watchdog: a thread that polls everything watched five times a second. A time-out
/// is deferred while a rank that is waited for does local work that progresses. On the first
/// problem it prints it with this process's rank and host and the stall diagnosis, and ends all
/// ranks.
class Watchdog {
 public:
  /// Diagnoses a stall by asking the given ranks.
  using Diagnose = std::function<StallDiagnosis(const Ranks&)>;
  /// Whether ranks have yet to write the stacks for which that has asked.
  using AwaitsStacks = std::function<bool()>;

  /// The process's only watchdog: starts with its first owner and ends with its last.
  static std::shared_ptr<Watchdog> shared();

  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& watched);
  /// Returns when the thread no longer uses `watched`.
  void remove(Watched& watched);
  /// Sets the stall diagnosis; an empty function disables it. Returns when the previous one is no
  /// longer running. The job ends when nothing is awaited any more, or after 10 seconds.
  void set_diagnosis(Diagnose diagnosis, AwaitsStacks awaits_stacks = {});
  /// The exit code of the job; initially 70.
  void set_exit_code(ExitCode code);
  ExitCode exit_code();
  /// Limits the time-outs of operations between ranks (not of local work) to `limit` until the next
  /// call; empty: to no less than they are. Called by the thread that communicates.
  void set_limit(std::optional<Watched::Clock::duration> limit) {
    limit_ = limit.value_or(Watched::Clock::duration::max());
  }
  /// `timeout`, or the limit where that is less.
  Watched::Clock::duration limited(Watched::Clock::duration timeout) const {
    return std::min(timeout, limit_.load());
  }
  /// "5 s (comm.timeout)", or that it is the learned limit: the time-out of a message.
  std::string limit_text(Watched::Clock::duration timeout) const;
  /// Tells messages what this process does, "the backward pass", and in which iteration. `phase` is
  /// a literal; "" for none.
  void set_phase(const char* phase, std::int64_t iteration = 0) {
    phase_ = phase;
    iteration_ = iteration;
  }
  /// "the backward pass of iteration 12"; "" when nothing is known.
  std::string phase() const;
  /// The union of Watched::awaited; empty optional while nothing waits.
  std::optional<Ranks> awaited();
  /// The longest Watched::progress_due; empty while there is no local work.
  std::optional<Watched::Clock::duration> progress_due();

 private:
  struct Entry {
    Watched* watched;
    /// Time-outs are deferred until then: a rank that is waited for progresses.
    Watched::Clock::time_point deferred_until{};
  };

  void watch();
  /// Gives all operations more time when this process was stopped for a while, and others with it.
  void defer_after_pause(Watched::Clock::time_point last_check);
  /// The first entry with a problem, which is written to `text`; null while there is none.
  Entry* find_problem(std::string& text);
  /// The entry of `watched` if it still exists and has a problem, else null.
  Entry* find_again(const Watched* watched);
  StallDiagnosis diagnose(const Ranks& ranks);
  /// Waits for the stacks of this process and of the others.
  void wait_for_stacks();
  [[noreturn]] void end_job(const std::string& problem, const std::string& diagnosis);

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  ExitCode exit_code_ = ExitCode::internal;
  std::atomic<Watched::Clock::duration> limit_{Watched::Clock::duration::max()};
  std::atomic<const char*> phase_{""};
  std::atomic<std::int64_t> iteration_{0};
  std::vector<Entry> watched_;
  std::mutex diagnosis_mutex_;  ///< guards diagnosis_, whose call makes other threads use mutex_
  Diagnose diagnosis_;
  AwaitsStacks awaits_stacks_;
  std::thread thread_;
};

/// A failed operation between ranks, mostly because one of them is lost. Its exit code is that of
/// the watchdog, so that the job's code does not depend on which of the two notices first.
class CommunicationError : public Error {
 public:
  explicit CommunicationError(const std::string& message)
      : Error(Watchdog::shared()->exit_code(), message) {}
};

/// Watches a blocking call that waits for other ranks, for the length of a scope.
class WatchedCall final : public Watched {
 public:
  /// `what` is for the message when the scope lasts longer than `timeout`; `ranks` are those that
  /// the call waits for, where they are known.
  WatchedCall(Watchdog& watchdog, std::string what, Clock::duration timeout,
              std::shared_ptr<const Ranks> ranks = {});
  ~WatchedCall() override;
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

  std::string problem(Clock::time_point now) override;
  std::optional<Ranks> awaited(Clock::time_point now) override;

 private:
  Watchdog& watchdog_;
  const std::string what_;
  const Clock::duration timeout_;
  const std::shared_ptr<const Ranks> ranks_;
  const Clock::time_point start_ = Clock::now();
};

/// What counts as progress of WatchedWork.
enum class ProgressBy {
  notes,    ///< note_progress()
  cpu_time  ///< CPU time of the thread that made it, too: a read that hangs takes none
};

/// Local work that other ranks wait for and that takes as long as its size demands, such as writing
/// a checkpoint: no rank times out while it progresses. A stall of the work as long as `timeout`
/// ends the job.
class WatchedWork final : public Watched {
 public:
  /// `what` is for messages: "writing '/runs/a/step-00000100.h5'", as is what sets the time-out.
  /// Without a watchdog the work is not watched.
  WatchedWork(std::shared_ptr<Watchdog> watchdog, std::string what, Clock::duration timeout,
              const char* limit = "comm.timeout", ProgressBy progress = ProgressBy::notes);
  ~WatchedWork() override;
  WatchedWork(const WatchedWork&) = delete;
  WatchedWork& operator=(const WatchedWork&) = delete;

  /// Restarts the time-out. Called by any thread.
  void note_progress();

  std::string problem(Clock::time_point now) override;
  std::optional<Ranks> awaited(Clock::time_point) override { return std::nullopt; }
  std::optional<Clock::duration> progress_due(Clock::time_point now) override;

 private:
  const std::shared_ptr<Watchdog> watchdog_;
  const std::string what_;
  const Clock::duration timeout_;
  const char* const limit_;
  std::optional<clockid_t> cpu_clock_;        ///< with ProgressBy::cpu_time
  std::chrono::nanoseconds last_cpu_time_{};  ///< at the last progress
  std::atomic<Clock::time_point> last_progress_{Clock::now()};
};

/// The operations of one communicator that are enqueued and not known to be complete, oldest first.
/// They run in that order. `Event` has a method done(): a CUDA event.
template <typename Event>
class OperationQueue {
 public:
  using Clock = std::chrono::steady_clock;

  struct Operation {
    const char* name = "";
    std::uint64_t number = 0;  ///< counts the communicator's operations from 1
    std::size_t bytes = 0;
    std::shared_ptr<Event> end;  ///< null until the call that enqueues it has returned
  };

  /// Called before an operation is enqueued.
  void begin(const char* name, std::size_t bytes, Clock::time_point now) {
    if (operations_.empty()) head_since_ = now;
    operations_.push_back({.name = name, .number = ++count_, .bytes = bytes, .end = nullptr});
  }
  /// The newest operation is enqueued, and completes with `end`.
  void queued(std::shared_ptr<Event> end) { operations_.back().end = std::move(end); }
  /// The newest operation could not be enqueued.
  void failed() { operations_.pop_back(); }

  /// Removes completed operations. Their successor is at the head since `now`.
  void retire(Clock::time_point now) {
    while (!operations_.empty() && operations_.front().end && operations_.front().end->done()) {
      operations_.pop_front();
      head_since_ = now;
    }
  }

  /// The oldest operation, when it has been at the head for `timeout`; otherwise null. Operations
  /// queued after it are not late, and nothing is late while the host enqueues nothing.
  const Operation* overdue(Clock::time_point now, Clock::duration timeout) const {
    return !operations_.empty() && now - head_since_ >= timeout ? &operations_.front() : nullptr;
  }

 private:
  std::deque<Operation> operations_;
  Clock::time_point head_since_;
  std::uint64_t count_ = 0;
};

}  // namespace trireme::comm
