#include "comm/watchdog.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <utility>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/system/process.hpp"

namespace trireme::comm {
namespace {

constexpr std::chrono::milliseconds kCheckInterval{200};
/// A check this late means that the process was stopped, with its job or its machine.
constexpr std::chrono::seconds kPause{3};
/// Delay between the message and the end of the job: other ranks time out about now, too, and print
/// their messages.
constexpr std::chrono::seconds kMessageDelay{1};
/// CPU time that is taken for progress: a thread takes more to read a few blocks of a file.
constexpr std::chrono::milliseconds kCpuTimeOfProgress{1};
/// Longest wait for the ranks' stacks: what does not come to its end may be the storage.
constexpr std::chrono::seconds kStacksTimeout{10};

}  // namespace

Watched::Clock::duration to_duration(double seconds) {
  // A third of the range of 64 bits of nanoseconds: time-outs are added to each other.
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
  watched_.push_back({.watched = &watched});
}

void Watchdog::remove(Watched& watched) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const Entry& entry) { return entry.watched == &watched; });
}

void Watchdog::set_diagnosis(Diagnose diagnosis, AwaitsStacks awaits_stacks) {
  const std::lock_guard lock(diagnosis_mutex_);
  diagnosis_ = std::move(diagnosis);
  awaits_stacks_ = std::move(awaits_stacks);
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
  for (const Entry& entry : watched_) {
    const std::optional<Ranks> ranks = entry.watched->awaited(Watched::Clock::now());
    if (!ranks) continue;
    if (!all) all.emplace();
    all->insert(all->end(), ranks->begin(), ranks->end());
  }
  return all;
}

std::optional<Watched::Clock::duration> Watchdog::progress_due() {
  const std::lock_guard lock(mutex_);
  std::optional<Watched::Clock::duration> longest;
  for (const Entry& entry : watched_) {
    const auto due = entry.watched->progress_due(Watched::Clock::now());
    if (due) longest = std::max(*due, longest.value_or(*due));
  }
  return longest;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  auto last_check = Watched::Clock::now();
  while (!stopped_.wait_for(lock, kCheckInterval, [this] { return stop_; })) {
    defer_after_pause(std::exchange(last_check, Watched::Clock::now()));
    std::string text;
    const Entry* const first = find_problem(text);
    if (!first) continue;
    const Watched* const watched = first->watched;
    const Ranks ranks = first->watched->awaited(Watched::Clock::now()).value_or(Ranks{});
    lock.unlock();  // StallDiagnostics calls awaited() when other ranks ask
    const StallDiagnosis diagnosis = diagnose(ranks);
    lock.lock();
    Entry* const entry = find_again(watched);
    if (!entry) continue;
    if (diagnosis.progress_due.count() > 0) {
      entry->deferred_until = Watched::Clock::now() + diagnosis.progress_due;
      continue;
    }
    lock.unlock();
    end_job(text, diagnosis.text);
  }
}

void Watchdog::defer_after_pause(Watched::Clock::time_point last_check) {
  const auto now = Watched::Clock::now();
  if (now - last_check < kPause) return;
  for (Entry& entry : watched_) entry.deferred_until = now + (now - last_check);
}

Watchdog::Entry* Watchdog::find_problem(std::string& text) {
  const auto now = Watched::Clock::now();
  for (Entry& entry : watched_)
    if (entry.deferred_until <= now)
      if (text = entry.watched->problem(now); !text.empty()) return &entry;
  return nullptr;
}

Watchdog::Entry* Watchdog::find_again(const Watched* watched) {
  for (Entry& entry : watched_)
    if (entry.watched == watched)
      return entry.watched->problem(Watched::Clock::now()).empty() ? nullptr : &entry;
  return nullptr;
}

StallDiagnosis Watchdog::diagnose(const Ranks& ranks) {
  const std::lock_guard lock(diagnosis_mutex_);
  return diagnosis_ && !ranks.empty() ? diagnosis_(ranks) : StallDiagnosis{};
}

void Watchdog::wait_for_stacks() {
  const auto end = Watched::Clock::now() + kStacksTimeout;
  const auto awaited = [this] {
    const std::lock_guard lock(diagnosis_mutex_);
    return are_stacks_under_way() || (awaits_stacks_ && awaits_stacks_());
  };
  while (awaited() && Watched::Clock::now() < end) std::this_thread::sleep_for(kCheckInterval);
}

void Watchdog::end_job(const std::string& problem, const std::string& diagnosis) {
  const std::string line = fmt::format("{}: {}: {}{}{}{}{}\n", program_invocation_short_name,
                                       process_identity(), problem, phase().empty() ? "" : ", in ",
                                       phase(), diagnosis.empty() ? "" : "; ", diagnosis);
  std::fputs(line.c_str(), stderr);
  start_to_write_stacks();
  std::this_thread::sleep_for(kMessageDelay);
  wait_for_stacks();
  const std::lock_guard lock(mutex_);
  abort_all(static_cast<int>(exit_code_));
}

std::string Watchdog::limit_text(Watched::Clock::duration timeout) const {
  const auto seconds = [](Watched::Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
  };
  const Watched::Clock::duration limit = limited(timeout);
  if (limit == timeout) return fmt::format("{} s (comm.timeout)", seconds(timeout));
  return fmt::format("{:.1f} s (the limit learned from earlier iterations; comm.timeout is {} s)",
                     seconds(limit), seconds(timeout));
}

std::string Watchdog::phase() const {
  const std::string what = phase_.load();
  return what.empty() ? what : fmt::format("{} of iteration {}", what, iteration_.load());
}

WatchedCall::WatchedCall(Watchdog& watchdog, std::string what, Clock::duration timeout,
                         std::shared_ptr<const Ranks> ranks)
    : watchdog_(watchdog), what_(std::move(what)), timeout_(timeout), ranks_(std::move(ranks)) {
  watchdog_.add(*this);
}

WatchedCall::~WatchedCall() { watchdog_.remove(*this); }

std::string WatchedCall::problem(Clock::time_point now) {
  if (now - start_ < watchdog_.limited(timeout_)) return "";
  return fmt::format("{} took longer than {}", what_, watchdog_.limit_text(timeout_));
}

std::optional<Ranks> WatchedCall::awaited(Clock::time_point) { return ranks_ ? *ranks_ : Ranks{}; }

WatchedWork::WatchedWork(std::shared_ptr<Watchdog> watchdog, std::string what,
                         Clock::duration timeout, const char* limit, ProgressBy progress)
    : watchdog_(std::move(watchdog)), what_(std::move(what)), timeout_(timeout), limit_(limit) {
  clockid_t clock = 0;
  if (progress == ProgressBy::cpu_time && ::pthread_getcpuclockid(::pthread_self(), &clock) == 0)
    cpu_clock_ = clock;
  if (watchdog_) watchdog_->add(*this);
}

WatchedWork::~WatchedWork() {
  if (watchdog_) watchdog_->remove(*this);
}

void WatchedWork::note_progress() { last_progress_ = Clock::now(); }

std::string WatchedWork::problem(Clock::time_point now) {
  if (*progress_due(now) > Clock::duration::zero()) return "";
  return fmt::format("{} made no progress for {} s ({})", what_,
                     std::chrono::duration<double>(timeout_).count(), limit_);
}

std::optional<Watched::Clock::duration> WatchedWork::progress_due(Clock::time_point now) {
  timespec time{};
  if (cpu_clock_ && ::clock_gettime(*cpu_clock_, &time) == 0) {
    const auto cpu_time =
        std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    if (cpu_time >= last_cpu_time_ + kCpuTimeOfProgress) {
      last_cpu_time_ = cpu_time;
      note_progress();
    }
  }
  return last_progress_.load() + timeout_ - now;
}

}  // namespace trireme::comm
