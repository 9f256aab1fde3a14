#include "comm/nccl/nccl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "comm/communicator.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"

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
  const auto* late = operations_.overdue(now, watchdog_->limited(timeout_));
  if (!late) return "";
  return fmt::format(
      "{}: operation {}, {} of {}, {} for {}: another rank has not joined it or "
      "has failed; NCCL and CUDA report no error on this rank",
      name_, late->number, late->name, human_bytes(static_cast<double>(late->bytes)),
      late->end ? "has not finished" : "could not be queued", watchdog_->limit_text(timeout_));
}

std::optional<Ranks> WatchedOperations::awaited(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  return operations_.overdue(now, std::min<Clock::duration>(timeout_, kLate))
             ? std::optional(*ranks_)
             : std::nullopt;
}

// ---------------------------------------------------------------------------- NCCL

namespace {

constexpr std::chrono::seconds kNcclAbortTimeout{30};

Nccl load() {
  const SharedLibrary library(
      {"libnccl.so.2"},
      "several GPUs need NCCL 2.18 or newer: install it (package libnccl2 of NVIDIA's repository), "
      "or name its folder in LD_LIBRARY_PATH");
  Nccl nccl{};
#define TRIREME_LOAD(member, name) nccl.member = library.function<decltype(name)>(#name)
  TRIREME_LOAD(get_version, ncclGetVersion);
  TRIREME_LOAD(get_error_string, ncclGetErrorString);
  TRIREME_LOAD(get_last_error, ncclGetLastError);
  TRIREME_LOAD(get_unique_id, ncclGetUniqueId);
  TRIREME_LOAD(comm_init_rank_config, ncclCommInitRankConfig);
  TRIREME_LOAD(comm_destroy, ncclCommDestroy);
  TRIREME_LOAD(comm_abort, ncclCommAbort);
  TRIREME_LOAD(comm_get_async_error, ncclCommGetAsyncError);
  TRIREME_LOAD(all_reduce, ncclAllReduce);
  TRIREME_LOAD(reduce_scatter, ncclReduceScatter);
  TRIREME_LOAD(all_gather, ncclAllGather);
  TRIREME_LOAD(broadcast, ncclBroadcast);
  TRIREME_LOAD(send, ncclSend);
  TRIREME_LOAD(recv, ncclRecv);
#undef TRIREME_LOAD
  return nccl;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl loaded = load();
  return loaded;
}

std::string nccl_version() {
  int version = 0;
  nccl().get_version(&version);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      throw InternalError("ranks do not exchange {}", name_of(dtype));
  }
  throw_unknown_dtype(dtype);
}

ncclRedOp_t nccl_operation(Reduce op) {
  switch (op) {
    case Reduce::sum:
      return ncclSum;
    case Reduce::max:
      return ncclMax;
    case Reduce::min:
      return ncclMin;
  }
  throw InternalError("unknown reduction {}", static_cast<int>(op));
}

std::string nccl_text(ncclResult_t code, ncclComm_t handle) {
  std::string text = nccl().get_error_string(code);
  const char* last = nccl().get_last_error(handle);
  if (last && *last) text += fmt::format(" (last error: {})", last);
  return text;
}

// ---------------------------------------------------------------------------- channel

NcclChannel::NcclChannel(const ncclUniqueId& id, Settings settings)
    : settings_(std::move(settings)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (settings_.max_blocks > 0) config.maxCTAs = settings_.max_blocks;
  const ncclResult_t code =
      nccl().comm_init_rank_config(&handle_, settings_.size, id, settings_.rank, &config);
  if (code != ncclSuccess)
    throw InternalError("{}, on {}, could not start NCCL: {}", settings_.name, host_name(),
                        nccl_text(code, nullptr));
  operations_.emplace(settings_.name, settings_.timeout, settings_.ranks,
                      [this] { return asynchronous_error(); });
}

NcclChannel::~NcclChannel() {
  operations_.reset();
  if (std::uncaught_exceptions() > 0) {
    const WatchedCall call(*watchdog_, settings_.name + ": aborting NCCL", kNcclAbortTimeout);
    nccl().comm_abort(handle_);
  } else {
    const WatchedCall call(*watchdog_, settings_.name + ": closing NCCL", settings_.timeout);
    nccl().comm_destroy(handle_);
  }
}

void NcclChannel::check(const char* what, ncclResult_t code) const {
  if (code != ncclSuccess)
    throw CommunicationError(fmt::format("{} failed in {}, on {}: {}", what, settings_.name,
                                         host_name(), nccl_text(code, handle_)));
}

std::string NcclChannel::asynchronous_error() const {
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t code = nccl().comm_get_async_error(handle_, &state); code != ncclSuccess)
    state = code;
  if (state == ncclSuccess || state == ncclInProgress) return "";
  return fmt::format("NCCL reports an error: {}", nccl_text(state, handle_));
}

}  // namespace trireme::comm
