#include "comm/peer/peer_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/check.hpp"

namespace trireme::comm {

using cuda::await_flag;
using cuda::raise_flag;

namespace {

/// Whether a call succeeded; clears the error, which the next launch would report again.
bool works(cudaError_t code) {
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess;
}

bool on_all(MpiCommunicator& ranks, bool mine) {
  return ranks.all_reduce(mine ? 1.0 : 0.0, Reduce::min) > 0.0;
}

/// Whether `device` can access the memory of another GPU, at `bus`. A GPU that is not visible to
/// this process may still be accessible: mapping its memory will tell.
bool reaches(int device, const std::string& bus) {
  int other = 0, can = 1;
  if (!works(cudaDeviceGetByPCIBusId(&other, bus.c_str()))) return true;
  return other != device && works(cudaDeviceCanAccessPeer(&can, device, other)) && can == 1;
}

}  // namespace

bool peers_reach_each_other(MpiCommunicator& ranks) {
  const bool possible = ranks.size() == 2 || ranks.size() == 4 || ranks.size() == 8;
  if (!possible || !on_all(ranks, ranks.split_by_node()->size() == ranks.size())) return false;
  int device = 0;
  std::array<char, 32> bus{};
  TRIREME_CUDA(cudaGetDevice(&device));
  TRIREME_CUDA(cudaDeviceGetPCIBusId(bus.data(), bus.size(), device));
  const std::vector<std::string> buses = ranks.all_gather_text(bus.data());
  bool all = true;
  for (int peer = 0; peer < ranks.size(); ++peer)
    if (peer != ranks.rank()) all = all && reaches(device, buses[peer]);
  return on_all(ranks, all);
}

PeerMemory::PeerMemory(MpiCommunicator& ranks, void* base, std::size_t bytes)
    : ranks_(ranks), bytes_(bytes) {
  bases_[ranks.rank()] = static_cast<std::byte*>(base);
}

std::unique_ptr<PeerMemory> PeerMemory::open(MpiCommunicator& ranks, void* base,
                                             std::size_t bytes) {
  TRIREME_CUDA(cudaDeviceSynchronize());
  std::unique_ptr<PeerMemory> memory(new PeerMemory(ranks, base, bytes));
  if (on_all(ranks, memory->map())) return memory;
  return nullptr;  // every rank unmaps what it has mapped
}

bool PeerMemory::map() {
  cudaIpcMemHandle_t own;
  const bool shared = works(cudaIpcGetMemHandle(&own, bases_[ranks_.rank()]));
  const std::vector<std::string> handles = ranks_.all_gather_text(
      shared ? std::string(reinterpret_cast<const char*>(&own), sizeof own) : "");
  bool all = true;
  for (int peer = 0; peer < ranks_.size(); ++peer) {
    if (peer == ranks_.rank()) continue;
    cudaIpcMemHandle_t handle;
    void* mapped = nullptr;
    if (handles[peer].size() == sizeof handle) {
      std::memcpy(&handle, handles[peer].data(), sizeof handle);
      if (!works(cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess)))
        mapped = nullptr;
    }
    bases_[peer] = static_cast<std::byte*>(mapped);
    all = all && mapped;
  }
  return all && shared;
}

void PeerMemory::unmap() {
  for (int peer = 0; peer < ranks_.size(); ++peer)
    if (peer != ranks_.rank() && bases_[peer]) cudaIpcCloseMemHandle(bases_[peer]);
}

PeerMemory::~PeerMemory() {
  if (std::uncaught_exceptions() > 0) return;
  cudaDeviceSynchronize();  // kernels of this rank that still use the mappings
  unmap();
  try {
    ranks_.barrier();
  } catch (const Error&) {  // a rank is lost, and the job ends
  }
}

bool PeerMemory::holds(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::byte* base = bases_[ranks_.rank()];
  return begin >= base && begin + bytes <= base + bytes_;
}

// ---------------------------------------------------------------------------- exchanges

namespace {

/// CUDA maps blocks of 2 MiB: a smaller allocation would expose other data.
constexpr std::size_t kFlagBytes = std::size_t{2} << 20;
static_assert((kAllFlags + kPeerLanes) * sizeof(std::uint32_t) <= kFlagBytes);

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
class PeerExchange::Registration final : public RegisteredBuffer {
 public:
  Registration(PeerExchange& exchange, std::unique_ptr<PeerMemory> memory)
      : exchange_(exchange), memory_(std::move(memory)) {
    exchange_.registered_.push_back(memory_.get());
  }
  ~Registration() override {
    if (exchange_.memory_of(exchange_.staging_, exchange_.staging_bytes_) == memory_.get())
      exchange_.set_staging_buffer(nullptr, 0, 0);
    std::erase(exchange_.registered_, memory_.get());
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
  // Operations in flight use the flags, which the end of the process frees.
  if (std::uncaught_exceptions() > 0) flags_.release();
}

std::unique_ptr<RegisteredBuffer> PeerExchange::register_buffer(void* base, std::size_t bytes) {
  std::unique_ptr<PeerMemory> memory = PeerMemory::open(ranks_, base, bytes);
  if (!memory) return nullptr;
  return std::make_unique<Registration>(*this, std::move(memory));
}

const PeerMemory* PeerExchange::memory_of(const void* data, std::size_t bytes) const {
  for (const PeerMemory* memory : registered_)
    if (memory->holds(data, bytes)) return memory;
  return nullptr;
}

std::shared_ptr<cuda::Event> PeerExchange::queue(PeerKind kind, void* data, std::size_t part_bytes,
                                                 DType dtype, PeerLane lane, cudaStream_t stream) {
  const std::size_t bytes = part_bytes * ranks_.size();
  const PeerMemory* memory = memory_of(data, bytes);
  if (!memory || !whole_vectors(data, part_bytes)) return nullptr;

  if (goes_by_copies(kind, bytes, lane))
    return enqueue(kind, bytes, lane, stream, [&] {
      queue_copies(kind, static_cast<std::byte*>(data), part_bytes, dtype, stream);
    });

  PeerOperation operation =
      next_operation(lane, static_cast<std::int64_t>(part_bytes) / kPeerVectorBytes, /*epochs=*/2);
  for (int peer = 0; peer < ranks_.size(); ++peer)
    operation.data[peer] = memory->of_rank(peer, data);
  return enqueue(kind, bytes, lane, stream,
                 [&] { launch_peer_operation(kind, operation, dtype, stream); });
}

template <typename Call>
std::shared_ptr<cuda::Event> PeerExchange::enqueue(PeerKind kind, std::size_t bytes, PeerLane lane,
                                                   cudaStream_t stream, Call&& call) {
  if (!captured_)
    return lanes_[static_cast<int>(lane)].operations.queue(name_of(kind), bytes, stream, call);
  call();
  captured_->bytes += bytes;
  auto done = std::make_shared<cuda::Event>();
  done->record(stream);
  return done;
}

PeerOperation PeerExchange::next_operation(PeerLane lane, std::int64_t vectors,
                                           std::uint32_t epochs) {
  const int index = static_cast<int>(lane);
  std::uint32_t& epoch = captured_ ? captured_->epochs[index] : lanes_[index].epoch;
  PeerOperation operation{.rank = ranks_.rank(),
                          .ranks = ranks_.size(),
                          .vectors = vectors,
                          .lane = lane,
                          .epoch = epoch + 1,
                          .base = captured_ ? flags_of(ranks_.rank()) + epoch_base(lane) : nullptr};
  epoch += epochs;
  for (int peer = 0; peer < ranks_.size(); ++peer) operation.flags[peer] = flags_of(peer);
  return operation;
}

std::shared_ptr<cuda::Event> PeerExchange::queue_terms(void* data, std::size_t part_bytes,
                                                       cudaStream_t stream, PeerTerms& terms) {
  const PeerMemory* memory = memory_of(data, part_bytes * ranks_.size());
  if (!memory || !whole_vectors(data, part_bytes)) return nullptr;
  terms = {.count = ranks_.size()};
  const std::byte* part = static_cast<const std::byte*>(data) + ranks_.rank() * part_bytes;
  for (int peer = 0; peer < ranks_.size(); ++peer) terms.terms[peer] = memory->of_rank(peer, part);
  const PeerOperation operation = next_operation(PeerLane::compute, /*vectors=*/0, /*epochs=*/1);
  return enqueue(PeerKind::reduce_scatter, part_bytes * ranks_.size(), PeerLane::compute, stream,
                 [&] { launch_peer_barrier(operation, stream); });
}

/// The exchanges of a CUDA graph, whose epochs are those that follow when it is launched.
class PeerExchange::Graph final : public CapturedCollectives {
 public:
  Graph(PeerExchange& exchange, const Captured& captured, cudaStream_t stream)
      : exchange_(exchange), captured_(captured), stream_(stream) {}

  void run(const std::function<void()>& launch) override {
    if (captured_.bytes == 0) return launch();
    exchange_.lanes_[static_cast<int>(PeerLane::compute)].operations.queue(
        "peer exchanges of a CUDA graph", captured_.bytes, stream_, [&] {
          for (const PeerLane lane : {PeerLane::compute, PeerLane::overlapped}) take_epochs(lane);
          launch();
        });
  }

 private:
  void take_epochs(PeerLane lane) {
    const int index = static_cast<int>(lane);
    if (captured_.epochs[index] == 0) return;
    std::uint32_t& epoch = exchange_.lanes_[index].epoch;
    raise_flag(stream_, exchange_.flags_of(exchange_.ranks_.rank()) + epoch_base(lane), epoch);
    epoch += captured_.epochs[index];
  }

  PeerExchange& exchange_;
  const Captured captured_;
  const cudaStream_t stream_;
};

std::unique_ptr<CapturedCollectives> PeerExchange::capture(cudaStream_t stream,
                                                           const std::function<void()>& work) {
  captured_.emplace();
  try {
    work();
  } catch (...) {
    captured_.reset();
    throw;
  }
  const Captured captured = *std::exchange(captured_, std::nullopt);
  if (captured.failed) return nullptr;
  return std::make_unique<Graph>(*this, captured, stream);
}

bool PeerExchange::whole_vectors(const void* data, std::size_t part_bytes) const {
  return part_bytes > 0 && part_bytes % kPeerVectorBytes == 0 &&
         reinterpret_cast<std::uintptr_t>(data) % kPeerVectorBytes == 0;
}

std::uint32_t* PeerExchange::flags_of(int rank) const {
  return reinterpret_cast<std::uint32_t*>(peer_flags_->of_rank(rank, flags_.get()));
}

// ---- copies

void PeerExchange::set_staging_buffer(void* base, std::size_t bytes, std::size_t min_bytes) {
  TRIREME_CHECK(!base || memory_of(base, bytes), "a staging buffer that is not registered");
  staging_ = base;
  staging_bytes_ = bytes;
  min_copied_bytes_ = min_bytes;
}

bool PeerExchange::goes_by_copies(PeerKind kind, std::size_t bytes, PeerLane lane) const {
  const bool pays =
      kind == PeerKind::reduce_scatter || (kind == PeerKind::all_reduce && ranks_.size() == 2);
  return !captured_ && lane == PeerLane::overlapped && pays && bytes >= min_copied_bytes_ &&
         staging_bytes_ >= kPeerVectorBytes * kMaxPeers;
}

void PeerExchange::queue_copies(PeerKind kind, std::byte* data, std::size_t part_bytes, DType dtype,
                                cudaStream_t stream) {
  // Two ranks that reduce send each other all of it.
  const bool whole = kind == PeerKind::all_reduce;
  const std::size_t stride = whole ? 0 : part_bytes;
  const std::size_t bytes = whole ? ranks_.size() * part_bytes : part_bytes;
  const std::size_t room = staging_bytes_ / (whole ? 1 : ranks_.size());
  const std::size_t piece = room / kPeerVectorBytes * kPeerVectorBytes;
  for (std::size_t first = 0; first < bytes; first += piece)
    queue_piece(data + first, stride, std::min(piece, bytes - first), dtype, stream);
}

void PeerExchange::queue_piece(std::byte* data, std::size_t stride, std::size_t bytes, DType dtype,
                               cudaStream_t stream) {
  const int rank = ranks_.rank(), ranks = ranks_.size();
  const PeerMemory& memory = *memory_of(staging_, staging_bytes_);
  const auto piece_for = [&](int to) { return data + to * stride; };
  // The slot of rank `from` in staging memory.
  const auto place_of = [&](int from) {
    return static_cast<std::byte*>(staging_) + (stride == 0 ? 0 : from * bytes);
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

std::shared_ptr<cuda::Event> PeerExchange::queue_gather(void* data, std::size_t part_bytes,
                                                        cudaStream_t stream,
                                                        PartArrivals& arrivals) {
  const int rank = ranks_.rank(), ranks = ranks_.size();
  const PeerMemory* memory = memory_of(data, ranks * part_bytes);
  if (captured_ || !memory) return nullptr;
  const std::uint32_t epoch = ++gathers_;
  const auto own = [&](CopyFlag what, int from) { return flags_of(rank) + copy_flag(what, from); };
  // GEMMs read the parts in the order in which the copies come: that of the next rank first.
  const auto receiver = [&](int step) { return (rank - step + ranks) % ranks; };
  arrivals = {.flags = own(CopyFlag::gathered, 0), .epoch = epoch, .parts = ranks, .own = rank};
  std::byte* const part = static_cast<std::byte*>(data) + rank * part_bytes;
  const auto copies = [&] {
    for (int step = 1; step < ranks; ++step)
      raise_flag(stream, flags_of(receiver(step)) + copy_flag(CopyFlag::writable, rank), epoch);
    for (int step = 1; step < ranks; ++step) {
      const int peer = receiver(step);
      await_flag(stream, own(CopyFlag::writable, peer), epoch);
      TRIREME_CUDA(cudaMemcpyAsync(memory->of_rank(peer, part), part, part_bytes, cudaMemcpyDefault,
                                   stream));
      raise_flag(stream, flags_of(peer) + copy_flag(CopyFlag::gathered, rank), epoch);
    }
    cuda::await_parts(stream, arrivals);
  };
  return enqueue(PeerKind::all_gather, ranks * part_bytes, PeerLane::overlapped, stream, copies);
}

// ---------------------------------------------------------------------------- messages

PeerRoute::PeerRoute(std::unique_ptr<MpiCommunicator> pair, std::size_t max_bytes,
                     const std::string& description, Duration timeout)
    : pair_(std::move(pair)),
      max_bytes_(max_bytes),
      operations_(description, timeout, pair_->ranks()) {}

std::unique_ptr<PeerRoute> PeerRoute::open(std::unique_ptr<MpiCommunicator> pair,
                                           std::size_t max_bytes, const std::string& description,
                                           Duration timeout) {
  if (max_bytes == 0 || !peers_reach_each_other(*pair)) return nullptr;
  std::unique_ptr<PeerRoute> route(new PeerRoute(std::move(pair), max_bytes, description, timeout));
  void* block = nullptr;
  TRIREME_CUDA(cudaMalloc(&block, peer_route_bytes(max_bytes)));
  route->block_.reset(block);
  TRIREME_CUDA(cudaMemset(block, 0, kPeerRouteFlagBytes));
  route->memory_ = PeerMemory::open(*route->pair_, block, peer_route_bytes(max_bytes));
  return route->memory_ ? std::move(route) : nullptr;
}

PeerRoute::~PeerRoute() {
  // Operations in flight use the block, which the end of the process frees.
  if (std::uncaught_exceptions() > 0) block_.release();
}

std::uint32_t* PeerRoute::flag_of(int end) const {
  return reinterpret_cast<std::uint32_t*>(memory_->of_rank(end, block_.get()));
}

std::byte* PeerRoute::mailbox_of(int end) const {
  return memory_->of_rank(end, block_.get()) + kPeerRouteFlagBytes;
}

template <typename Queue>
void PeerRoute::for_each_part(std::size_t bytes, Queue&& queue) {
  for (std::size_t first = 0; first < bytes; first += max_bytes_)
    queue(first, std::min(max_bytes_, bytes - first), ++parts_);
}

std::shared_ptr<cuda::Event> PeerRoute::send(const void* data, std::size_t bytes,
                                             cudaStream_t stream) {
  const int here = pair_->rank(), there = 1 - here;
  const auto* from = static_cast<const std::byte*>(data);
  return operations_.queue("send to a peer", bytes, stream, [&] {
    for_each_part(bytes, [&](std::size_t first, std::size_t size, std::uint32_t part) {
      await_flag(stream, flag_of(here), part - 1);  // the mailbox is empty
      TRIREME_CUDA(
          cudaMemcpyAsync(mailbox_of(there), from + first, size, cudaMemcpyDefault, stream));
      raise_flag(stream, flag_of(there), part);
    });
  });
}

std::shared_ptr<cuda::Event> PeerRoute::receive(void* data, std::size_t bytes,
                                                cudaStream_t stream) {
  const int here = pair_->rank(), there = 1 - here;
  auto* to = static_cast<std::byte*>(data);
  return operations_.queue("receive from a peer", bytes, stream, [&] {
    for_each_part(bytes, [&](std::size_t first, std::size_t size, std::uint32_t part) {
      await_flag(stream, flag_of(here), part);
      TRIREME_CUDA(cudaMemcpyAsync(to + first, mailbox_of(here), size, cudaMemcpyDefault, stream));
      raise_flag(stream, flag_of(there), part);
    });
  });
}

}  // namespace trireme::comm
