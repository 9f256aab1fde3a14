#include "comm/peer/peer_exchange.hpp"

#include <exception>
#include <utility>

#include "comm/peer/stream_flags.hpp"
#include "core/cuda/check.hpp"

namespace trireme::comm {
namespace {

/// What CUDA hands out at a time: less would share other data as well.
constexpr std::size_t kFlagBytes = std::size_t{2} << 20;
static_assert(kAllFlags * sizeof(std::uint32_t) <= kFlagBytes);

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
  ~Share() override {
    if (exchange_.memory_of(exchange_.scratch_, exchange_.scratch_bytes_) == memory_.get())
      exchange_.lend(nullptr, 0);
    std::erase(exchange_.shared_, memory_.get());
  }

 private:
  PeerExchange& exchange_;
  std::unique_ptr<PeerMemory> memory_;
};

PeerExchange::PeerExchange(MpiCommunicator& ranks, const std::string& description, Duration timeout)
    : ranks_(ranks),
      lanes_{Lane(description, timeout, ranks.ranks()), Lane(description, timeout, ranks.ranks())} {
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
  if (goes_by_copies(kind, bytes, lane_name))
    return lane.operations.queue(name_of(kind), bytes, stream, [&] {
      queue_copies(kind, static_cast<std::byte*>(data), part_bytes, dtype, stream);
    });

  PeerOperation operation{.rank = ranks_.rank(),
                          .ranks = ranks_.size(),
                          .vectors = static_cast<std::int64_t>(part_bytes) / kPeerVectorBytes,
                          .lane = lane_name,
                          .epoch = lane.epoch + 1};
  lane.epoch += 2;
  for (int peer = 0; peer < ranks_.size(); ++peer) {
    operation.data[peer] = memory->of_rank(peer, data);
    operation.flags[peer] = flags_of(peer);
  }
  return lane.operations.queue(name_of(kind), bytes, stream,
                               [&] { launch_peer_operation(kind, operation, dtype, stream); });
}

std::uint32_t* PeerExchange::flags_of(int rank) const {
  return reinterpret_cast<std::uint32_t*>(peer_flags_->of_rank(rank, flags_.get()));
}

// ---- copies

void PeerExchange::lend(void* base, std::size_t bytes) {
  TRIREME_CHECK(!base || memory_of(base, bytes), "scratch memory that is not shared");
  scratch_ = base;
  scratch_bytes_ = bytes;
}

bool PeerExchange::goes_by_copies(PeerKind kind, std::size_t bytes, PeerLane lane) const {
  const bool pays =
      kind == PeerKind::reduce_scatter || (kind == PeerKind::all_reduce && ranks_.size() == 2);
  return lane == PeerLane::beside && pays && bytes <= scratch_bytes_;
}

void PeerExchange::queue_copies(PeerKind kind, std::byte* data, std::size_t part_bytes, DType dtype,
                                cudaStream_t stream) {
  const int rank = ranks_.rank(), ranks = ranks_.size();
  const bool whole = kind == PeerKind::all_reduce;
  const std::size_t bytes = whole ? ranks * part_bytes : part_bytes;
  const PeerMemory& memory = *memory_of(scratch_, scratch_bytes_);
  // What rank `to` gets of a buffer, and where in its scratch memory that of rank `from` belongs.
  const auto piece_for = [&](int to) { return data + (whole ? 0 : to * part_bytes); };
  const auto place_of = [&](int from) {
    return static_cast<std::byte*>(scratch_) + (whole ? 0 : from * part_bytes);
  };
  const std::uint32_t epoch = ++copies_;

  for (int step = 1; step < ranks; ++step) {  // each rank starts with its neighbour
    const int peer = (rank + step) % ranks;
    await_flag(stream, flags_of(rank) + copy_flag(CopyFlag::consumed, peer), epoch - 1);
    TRIREME_CUDA(cudaMemcpyAsync(memory.of_rank(peer, place_of(rank)), piece_for(peer), bytes,
                                 cudaMemcpyDefault, stream));
    raise_flag(stream, flags_of(peer) + copy_flag(CopyFlag::arrived, rank), epoch);
  }
  PeerSum sum{.ranks = ranks,
              .result = piece_for(rank),
              .vectors = static_cast<std::int64_t>(bytes) / kPeerVectorBytes};
  for (int from = 0; from < ranks; ++from) {
    sum.terms[from] = from == rank ? piece_for(rank) : place_of(from);
    if (from != rank)
      await_flag(stream, flags_of(rank) + copy_flag(CopyFlag::arrived, from), epoch);
  }
  launch_peer_sum(sum, dtype, stream);
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != rank)
      raise_flag(stream, flags_of(peer) + copy_flag(CopyFlag::consumed, rank), epoch);
}

}  // namespace trireme::comm
