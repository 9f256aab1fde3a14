// Ends the job when communication fails or stalls while the program's own thread cannot see it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"

namespace trireme::comm {

/// Ranks of the world, by number.
using Ranks = std::vector<int>;

/// Something that can fail or stall unseen.
class Watched {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Watched() = default;
  /// What is wrong at `now`, in words; empty while nothing is. Called by the watchdog's thread.
  virtual std::string complaint(Clock::time_point now) = 0;
  /// The ranks of which it waits for some at `now`, an empty list where they are not known; nothing
  /// while it waits for nobody. Called by any thread.
  virtual std::optional<Ranks> awaited(Clock::time_point now) = 0;
  /// For work of this process that other ranks wait for: the time from `now` within which it must
  /// progress, zero or less when it is stalled. Nothing for all else. Called by any thread.
  virtual std::optional<Clock::duration> progress_due(Clock::time_point) { return std::nullopt; }
};

/// `seconds` as the clock counts them, a century at most: a time-out that nobody lives to see.
Watched::Clock::duration to_duration(double seconds);

/// Why ranks keep the others waiting.
struct StallDiagnosis {
  /// "no answer from rank 1 on node1"; "" when it is not known
  std::string text;
  /// Positive when a rank does work that progresses, such as writing a file: nothing is stalled,
  /// and within this time the rank will have progressed again or be stalled.
  Watched::Clock::duration progress_due{};
};

/// The process's watchdog: a thread that asks everything watched for complaints five times a
/// second. A complaint about a wait for other ranks counts only once none of them does work that
/// progresses. On the first that counts it prints the complaint with this process's rank and host,
/// and ends all ranks.
class Watchdog {
 public:
  /// Asks the ranks that are waited for.
  using RollCall = std::function<StallDiagnosis(const Ranks&)>;

  /// The one of this process, started for its first owner and ended with its last.
  static std::shared_ptr<Watchdog> shared();

  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& watched);
  /// Returns when `watched` is no longer looked at.
  void remove(Watched& watched);
  /// What is added to a complaint; an empty function adds nothing. Returns when the one before is
  /// no longer called.
  void set_roll_call(RollCall roll_call);
  /// The code that the job ends with from now on; at first 70.
  void set_exit_code(ExitCode code);
  ExitCode exit_code();
  /// The ranks of which this process waits for some; nothing while it waits for nobody.
  std::optional<Ranks> awaited();
  /// The longest Watched::progress_due of this process's work; nothing while there is none.
  std::optional<Watched::Clock::duration> progress_due();

 private:
  struct Entry {
    Watched* watched;
    /// Until then complaints are deferred, because a rank that is waited for progresses.
    Watched::Clock::time_point deferred_until{};
  };

  void watch();
  /// The entry that complains first, null while none does; `text` gets the complaint.
  Entry* complainer(std::string& text);
  /// The entry of `watched` if it is still there and complains, else null.
  Entry* still_complains(const Watched* watched);
  StallDiagnosis diagnose(const Ranks& ranks);
  [[noreturn]] void end_job(const std::string& complaint, const std::string& diagnosis);

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  ExitCode exit_code_ = ExitCode::internal;
  std::vector<Entry> watched_;
  std::mutex roll_call_mutex_;  ///< of the next, which makes other threads use the rest
  RollCall roll_call_;
  std::thread thread_;
};

/// An operation between ranks that failed, mostly because one of them is lost. Its exit code is
/// that of the watchdog: how the job ends does not depend on who notices first.
class CommunicationError : public Error {
 public:
  explicit CommunicationError(const std::string& message)
      : Error(Watchdog::shared()->exit_code(), message) {}
};

/// Watches a call that waits for other ranks on the host, for the length of a scope.
class WatchedCall final : public Watched {
 public:
  /// `what` is said when the scope lasts longer than `timeout`; `ranks` are those that the call
  /// waits for, where they are known.
  WatchedCall(Watchdog& watchdog, std::string what, Clock::duration timeout,
              std::shared_ptr<const Ranks> ranks = {});
  ~WatchedCall() override;
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

  std::string complaint(Clock::time_point now) override;
  std::optional<Ranks> awaited(Clock::time_point now) override;

 private:
  Watchdog& watchdog_;
  const std::string what_;
  const Clock::duration timeout_;
  const std::shared_ptr<const Ranks> ranks_;
  const Clock::time_point start_ = Clock::now();
};

/// Work of this rank that others wait for and that takes as long as its size demands, such as
/// writing a checkpoint: while it progresses, no rank complains about waiting for it. A stall of
/// the work as long as `timeout` ends the job.
class WatchedWork final : public Watched {
 public:
  /// `what` is for messages: "writing '/runs/a/step-00000100.h5'". Without a watchdog the work is
  /// not watched.
  WatchedWork(std::shared_ptr<Watchdog> watchdog, std::string what, Clock::duration timeout);
  ~WatchedWork() override;
  WatchedWork(const WatchedWork&) = delete;
  WatchedWork& operator=(const WatchedWork&) = delete;

  /// Starts the time-out anew. Called by any thread.
  void note_progress();

  std::string complaint(Clock::time_point now) override;
  std::optional<Ranks> awaited(Clock::time_point) override { return std::nullopt; }
  std::optional<Clock::duration> progress_due(Clock::time_point now) override;

 private:
  const std::shared_ptr<Watchdog> watchdog_;
  const std::string what_;
  const Clock::duration timeout_;
  std::atomic<Clock::time_point> last_progress_{Clock::now()};
};

}  // namespace trireme::comm
