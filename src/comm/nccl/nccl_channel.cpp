#include "comm/nccl/nccl_channel.hpp"

#include <exception>
#include <utility>

#include "core/files.hpp"
#include "core/identity.hpp"

namespace trireme::comm {
namespace {

/// A failure is first left to the program's own thread, which meets it in its next call and knows
/// more, and to the rank that caused it, which takes the job down.
constexpr std::chrono::seconds kGrace{5};
constexpr std::chrono::seconds kAbortTimeout{30};

double seconds(Watched::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

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

NcclChannel::NcclChannel(const ncclUniqueId& id, Settings settings)
    : settings_(std::move(settings)) {
  TRIREME_CUDA(cudaGetDevice(&device_));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (settings_.most_blocks > 0) config.maxCTAs = settings_.most_blocks;
  const ncclResult_t code =
      nccl().comm_init_rank_config(&handle_, settings_.size, id, settings_.rank, &config);
  if (code != ncclSuccess)
    throw InternalError("{}, on {}, could not start NCCL: {}", settings_.name, host_name(),
                        nccl_text(code, nullptr));
  watchdog_->add(*this);
}

NcclChannel::~NcclChannel() {
  watchdog_->remove(*this);
  if (std::uncaught_exceptions() > 0) {
    const WatchedCall call(*watchdog_, settings_.name + ": aborting NCCL", kAbortTimeout);
    nccl().comm_abort(handle_);
  } else {
    const WatchedCall call(*watchdog_, settings_.name + ": closing NCCL", settings_.timeout);
    nccl().comm_destroy(handle_);
  }
}

void NcclChannel::begin(const char* what, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  operations_.retire(now);
  operations_.begin(what, bytes, now);
}

std::shared_ptr<cuda::Event> NcclChannel::end(const char* what, ncclResult_t code,
                                              cudaStream_t stream) {
  if (code != ncclSuccess) {
    const std::lock_guard lock(mutex_);
    operations_.failed();
    throw InternalError("{} failed in {}, on {}: {}", what, settings_.name, host_name(),
                        nccl_text(code, handle_));
  }
  std::shared_ptr<cuda::Event> done = events_.take();
  done->record(stream);
  const std::lock_guard lock(mutex_);
  operations_.queued(done);
  return done;
}

std::string NcclChannel::failure(Clock::time_point now) {
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t code = nccl().comm_get_async_error(handle_, &state); code != ncclSuccess)
    state = code;
  if (state != ncclSuccess && state != ncclInProgress)
    return fmt::format("NCCL reports an error: {}", nccl_text(state, handle_));
  try {
    operations_.retire(now);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string NcclChannel::complaint(Clock::time_point now) {
  cudaSetDevice(device_);  // a thread that asks of another GPU would take memory of it
  const std::lock_guard lock(mutex_);
  if (const std::string text = failure(now); !text.empty()) {
    if (!failed_since_) failed_since_ = now;
    return now - *failed_since_ < kGrace ? "" : fmt::format("{}: {}", settings_.name, text);
  }
  const auto* late = operations_.overdue(now, settings_.timeout);
  if (!late) return "";
  return fmt::format("{}: operation {}, {} of {}, {} for {} s (comm.timeout): {}", settings_.name,
                     late->number, late->name, human_bytes(static_cast<double>(late->bytes)),
                     late->end ? "has not finished" : "could not be queued",
                     seconds(settings_.timeout),
                     "another rank has not joined it, or has failed; NCCL reports no error");
}

}  // namespace trireme::comm
