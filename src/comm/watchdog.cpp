#include "comm/watchdog.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/identity.hpp"

namespace trireme::comm {
namespace {

constexpr std::chrono::milliseconds kInterval{200};
/// Between the message and the end of the job: other ranks time out about now, too, and say where
/// they stand.
constexpr std::chrono::seconds kLastWords{1};

}  // namespace

Watched::Clock::duration to_duration(double seconds) {
  // A third of what 64 bits of nanoseconds hold: time-outs are added to each other.
  constexpr double kCentury = 100.0 * 365.25 * 24.0 * 3600.0;
  return std::chrono::duration_cast<Watched::Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kCentury)));
}

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

void Watchdog::set_roll_call(RollCall roll_call) {
  const std::lock_guard lock(roll_call_mutex_);
  roll_call_ = std::move(roll_call);
}

void Watchdog::set_exit_code(ExitCode code) {
  const std::lock_guard lock(mutex_);
  exit_code_ = code;
}

ExitCode Watchdog::exit_code() {
  const std::lock_guard lock(mutex_);
  return exit_code_;
}

std::optional<Ranks> Watchdog::awaited() {
  const std::lock_guard lock(mutex_);
  std::optional<Ranks> all;
  for (Watched* watched : watched_) {
    const std::optional<Ranks> ranks = watched->awaited(Watched::Clock::now());
    if (!ranks) continue;
    if (!all) all.emplace();
    all->insert(all->end(), ranks->begin(), ranks->end());
  }
  return all;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kInterval, [this] { return stop_; })) {
    std::string text;
    Watched* const watched = complainer(text);
    if (!watched) continue;
    const Ranks ranks = watched->awaited(Watched::Clock::now()).value_or(Ranks{});
    lock.unlock();  // other ranks will ask what this one waits for
    end_job(text, ranks);
  }
}

Watched* Watchdog::complainer(std::string& text) {
  for (Watched* watched : watched_)
    if (text = watched->complaint(Watched::Clock::now()); !text.empty()) return watched;
  return nullptr;
}

void Watchdog::end_job(const std::string& complaint, const Ranks& ranks) {
  std::string culprits;
  {
    const std::lock_guard lock(roll_call_mutex_);
    if (roll_call_ && !ranks.empty()) culprits = roll_call_(ranks);
  }
  const std::string line =
      fmt::format("{}: {}: {}{}{}\n", program_invocation_short_name, process_identity(), complaint,
                  culprits.empty() ? "" : "; ", culprits);
  std::fputs(line.c_str(), stderr);
  std::this_thread::sleep_for(kLastWords);
  const std::lock_guard lock(mutex_);
  abort_all(static_cast<int>(exit_code_));
}

WatchedCall::WatchedCall(Watchdog& watchdog, std::string what, Clock::duration timeout,
                         std::shared_ptr<const Ranks> ranks)
    : watchdog_(watchdog), what_(std::move(what)), timeout_(timeout), ranks_(std::move(ranks)) {
  watchdog_.add(*this);
}

WatchedCall::~WatchedCall() { watchdog_.remove(*this); }

std::string WatchedCall::complaint(Clock::time_point now) {
  if (now - start_ < timeout_) return "";
  return fmt::format("{} took longer than {} s (comm.timeout)", what_,
                     std::chrono::duration<double>(timeout_).count());
}

std::optional<Ranks> WatchedCall::awaited(Clock::time_point) { return ranks_ ? *ranks_ : Ranks{}; }

}  // namespace trireme::comm
