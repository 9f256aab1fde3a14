#include "comm/nccl/nccl.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <utility>

#include "comm/nccl/device_communicator.hpp"
#include "core/system/identity.hpp"
#include "core/system/shared_library.hpp"

namespace trireme::comm {
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
