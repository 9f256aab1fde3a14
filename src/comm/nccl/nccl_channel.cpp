#include "comm/nccl/nccl_channel.hpp"

#include <exception>
#include <utility>

#include "core/identity.hpp"

namespace trireme::comm {
namespace {

constexpr std::chrono::seconds kAbortTimeout{30};

}  // namespace

NcclChannel::NcclChannel(const ncclUniqueId& id, Settings settings)
    : settings_(std::move(settings)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (settings_.most_blocks > 0) config.maxCTAs = settings_.most_blocks;
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
    const WatchedCall call(*watchdog_, settings_.name + ": aborting NCCL", kAbortTimeout);
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
