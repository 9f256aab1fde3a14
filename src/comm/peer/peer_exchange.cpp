#include "comm/peer/peer_exchange.hpp"

#include <exception>
#include <utility>

namespace trireme::comm {
namespace {

/// What CUDA hands out at a time: less would share other data as well.
constexpr std::size_t kFlagBytes = std::size_t{2} << 20;
static_assert(kPeerFlags * sizeof(std::uint32_t) <= kFlagBytes);

const char* name_of(PeerKind kind) {
  switch (kind) {
    case PeerKind::reduce_scatter:
      return "peer reduce-scatter";
    case PeerKind::all_gather:
      return "peer all-gather";
    case PeerKind::all_reduce:
      return "peer all-reduce";
  }
  return "";
}

}  // namespace

/// A registered PeerMemory.
class PeerExchange::Share final : public SharedMemory {
 public:
  Share(PeerExchange& exchange, std::unique_ptr<PeerMemory> memory)
      : exchange_(exchange), memory_(std::move(memory)) {
    exchange_.shared_.push_back(memory_.get());
  }
  ~Share() override { std::erase(exchange_.shared_, memory_.get()); }

 private:
  PeerExchange& exchange_;
  std::unique_ptr<PeerMemory> memory_;
};

PeerExchange::PeerExchange(MpiCommunicator& ranks, const std::string& description, Duration timeout)
    : ranks_(ranks), lanes_{Lane(description, timeout), Lane(description, timeout)} {
  static_assert(kPeerLanes == 2);
}

std::unique_ptr<PeerExchange> PeerExchange::make(MpiCommunicator& ranks,
                                                 const std::string& description, Duration timeout) {
  if (!peers_reach_each_other(ranks)) return nullptr;
  std::unique_ptr<PeerExchange> exchange(new PeerExchange(ranks, description, timeout));
  void* flags = nullptr;
  TRIREME_CUDA(cudaMalloc(&flags, kFlagBytes));
  exchange->flags_.reset(flags);
  TRIREME_CUDA(cudaMemset(flags, 0, kFlagBytes));
  TRIREME_CUDA(cudaDeviceSynchronize());  // zero before anyone can write to them
  exchange->peer_flags_ = PeerMemory::open(ranks, flags, kFlagBytes);
  return exchange->peer_flags_ ? std::move(exchange) : nullptr;
}

PeerExchange::~PeerExchange() {
  // What may still run uses the flags: they go with the process.
  if (std::uncaught_exceptions() > 0) flags_.release();
}

std::unique_ptr<SharedMemory> PeerExchange::share(void* base, std::size_t bytes) {
  std::unique_ptr<PeerMemory> memory = PeerMemory::open(ranks_, base, bytes);
  if (!memory) return nullptr;
  return std::make_unique<Share>(*this, std::move(memory));
}

const PeerMemory* PeerExchange::memory_of(const void* data, std::size_t bytes) const {
  for (const PeerMemory* memory : shared_)
    if (memory->holds(data, bytes)) return memory;
  return nullptr;
}

std::shared_ptr<cuda::Event> PeerExchange::queue(PeerKind kind, void* data, std::size_t part_bytes,
                                                 DType dtype, PeerLane lane_name,
                                                 cudaStream_t stream) {
  const std::size_t bytes = part_bytes * ranks_.size();
  const PeerMemory* memory = memory_of(data, bytes);
  const bool whole_vectors = part_bytes > 0 && part_bytes % kPeerVectorBytes == 0 &&
                             reinterpret_cast<std::uintptr_t>(data) % kPeerVectorBytes == 0;
  if (!memory || !whole_vectors) return nullptr;

  Lane& lane = lanes_[static_cast<int>(lane_name)];
  PeerOperation operation{.rank = ranks_.rank(),
                          .ranks = ranks_.size(),
                          .vectors = static_cast<std::int64_t>(part_bytes) / kPeerVectorBytes,
                          .lane = lane_name,
                          .epoch = lane.epoch + 1};
  lane.epoch += 2;
  for (int peer = 0; peer < ranks_.size(); ++peer) {
    operation.data[peer] = memory->of_rank(peer, data);
    operation.flags[peer] =
        reinterpret_cast<std::uint32_t*>(peer_flags_->of_rank(peer, flags_.get()));
  }
  return lane.operations.queue(name_of(kind), bytes, stream,
                               [&] { launch_peer_operation(kind, operation, dtype, stream); });
}

}  // namespace trireme::comm
