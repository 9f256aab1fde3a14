#include "comm/watchdog.hpp"

#include <cerrno>
#include <cstdio>
#include <utility>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "core/identity.hpp"

namespace trireme::comm {
namespace {

constexpr std::chrono::milliseconds kInterval{200};
/// Between the message and the end of the job: other ranks time out about now, too, and say where
/// they stand.
constexpr std::chrono::seconds kLastWords{1};

[[noreturn]] void end_job(const std::string& complaint) {
  const std::string line =
      fmt::format("{}: {}: {}\n", program_invocation_short_name, process_identity(), complaint);
  std::fputs(line.c_str(), stderr);
  std::this_thread::sleep_for(kLastWords);
  abort_all(static_cast<int>(ExitCode::internal));
}

}  // namespace

std::shared_ptr<Watchdog> Watchdog::shared() {
  static std::mutex mutex;
  static std::weak_ptr<Watchdog> of_process;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Watchdog> watchdog = of_process.lock();
  if (!watchdog) of_process = watchdog = std::make_shared<Watchdog>();
  return watchdog;
}

Watchdog::Watchdog() : thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void Watchdog::add(Watched& watched) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(&watched);
}

void Watchdog::remove(Watched& watched) {
  const std::lock_guard lock(mutex_);
  std::erase(watched_, &watched);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kInterval, [this] { return stop_; })) {
    for (Watched* watched : watched_)
      if (const std::string text = watched->complaint(Watched::Clock::now()); !text.empty())
        end_job(text);
  }
}

WatchedCall::WatchedCall(Watchdog& watchdog, std::string what, Clock::duration timeout)
    : watchdog_(watchdog), what_(std::move(what)), timeout_(timeout) {
  watchdog_.add(*this);
}

WatchedCall::~WatchedCall() { watchdog_.remove(*this); }

std::string WatchedCall::complaint(Clock::time_point now) {
  if (now - start_ < timeout_) return "";
  return fmt::format("{} took longer than {} s (comm.timeout)", what_,
                     std::chrono::duration<double>(timeout_).count());
}

}  // namespace trireme::comm
