// Ends the job when communication fails or stalls while the program's own thread cannot see it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace trireme::comm {

/// Something that can fail or stall unseen.
class Watched {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Watched() = default;
  /// What is wrong at `now`, in words; empty while nothing is. Called by the watchdog's thread.
  virtual std::string complaint(Clock::time_point now) = 0;
};

/// The process's watchdog: a thread that asks everything watched for complaints five times a
/// second. On the first it prints the complaint with this process's rank and host, and ends all
/// ranks with exit code 70.
class Watchdog {
 public:
  /// The one of this process, started for its first owner and ended with its last.
  static std::shared_ptr<Watchdog> shared();

  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& watched);
  /// Returns when `watched` is no longer looked at.
  void remove(Watched& watched);

 private:
  void watch();

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::vector<Watched*> watched_;
  std::thread thread_;
};

/// Watches a call that waits for other ranks on the host, for the length of a scope.
class WatchedCall final : public Watched {
 public:
  /// `what` is said when the scope lasts longer than `timeout`.
  WatchedCall(Watchdog& watchdog, std::string what, Clock::duration timeout);
  ~WatchedCall() override;
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

  std::string complaint(Clock::time_point now) override;

 private:
  Watchdog& watchdog_;
  const std::string what_;
  const Clock::duration timeout_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace trireme::comm
