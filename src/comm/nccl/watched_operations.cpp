#include "comm/nccl/watched_operations.hpp"

#include <algorithm>
#include <utility>

#include "core/files.hpp"

namespace trireme::comm {
namespace {

/// Grace period for the main thread, whose next call throws with more detail, and for the rank that
/// caused the error, which ends the job.
constexpr std::chrono::seconds kGrace{5};
/// An operation that is the oldest for longer waits for other ranks, or for a long kernel of this
/// one.
constexpr std::chrono::seconds kLate{1};

}  // namespace

std::shared_ptr<cuda::Event> EventPool::take() {
  std::unique_ptr<cuda::Event> event;
  {
    const std::lock_guard lock(free_->mutex);
    if (!free_->events.empty()) {
      event = std::move(free_->events.back());
      free_->events.pop_back();
    }
  }
  if (!event) event = std::make_unique<cuda::Event>();
  return {event.release(), [free = free_](cuda::Event* used) {
            const std::lock_guard lock(free->mutex);
            free->events.emplace_back(used);
          }};
}

WatchedOperations::WatchedOperations(std::string name, Clock::duration timeout,
                                     std::shared_ptr<const Ranks> ranks,
                                     std::function<std::string()> failure)
    : name_(std::move(name)),
      timeout_(timeout),
      ranks_(std::move(ranks)),
      failure_(std::move(failure)) {
  TRIREME_CUDA(cudaGetDevice(&device_));
  watchdog_->add(*this);
}

WatchedOperations::~WatchedOperations() { watchdog_->remove(*this); }

void WatchedOperations::begin(const char* what, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  operations_.retire(now);
  operations_.begin(what, bytes, now);
}

void WatchedOperations::failed() {
  const std::lock_guard lock(mutex_);
  operations_.failed();
}

std::shared_ptr<cuda::Event> WatchedOperations::end(cudaStream_t stream) {
  std::shared_ptr<cuda::Event> done = events_.take();
  done->record(stream);
  const std::lock_guard lock(mutex_);
  operations_.queued(done);
  return done;
}

std::string WatchedOperations::failure(Clock::time_point now) {
  if (failure_)
    if (std::string text = failure_(); !text.empty()) return text;
  try {
    operations_.retire(now);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string WatchedOperations::problem(Clock::time_point now) {
  cudaSetDevice(device_);  // otherwise this thread would create a context on GPU 0
  const std::lock_guard lock(mutex_);
  if (const std::string text = failure(now); !text.empty()) {
    if (!failed_since_) failed_since_ = now;
    return now - *failed_since_ < kGrace ? "" : fmt::format("{}: {}", name_, text);
  }
  const auto* late = operations_.overdue(now, timeout_);
  if (!late) return "";
  return fmt::format(
      "{}: operation {}, {} of {}, {} for {} s (comm.timeout): another rank has not joined it or "
      "has failed; NCCL and CUDA report no error on this rank",
      name_, late->number, late->name, human_bytes(static_cast<double>(late->bytes)),
      late->end ? "has not finished" : "could not be queued",
      std::chrono::duration<double>(timeout_).count());
}

std::optional<Ranks> WatchedOperations::awaited(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  return operations_.overdue(now, std::min<Clock::duration>(timeout_, kLate))
             ? std::optional(*ranks_)
             : std::nullopt;
}

}  // namespace trireme::comm
