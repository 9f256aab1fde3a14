// The communicator over the memory of GPUs: make_device_communicator() makes it.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/nccl/nccl.hpp"
#include "comm/peer/peer_exchange.hpp"

namespace trireme::comm {

/// See make_device_communicator().
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(MpiCommunicator& ranks, const std::string& name, cudaStream_t stream,
                   const NcclOptions& options);
  ~NcclCommunicator() override;

  const std::string& name() const override { return name_; }
  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  void all_reduce(void* data, std::size_t count, DType dtype, Reduce op) override;
  void reduce_scatter(void* data, std::size_t count, DType dtype) override;
  void reduce_scatter_terms(void* data, std::size_t count, DType dtype, PeerTerms& terms) override;
  void all_gather(void* data, std::size_t count, DType dtype) override;
  void broadcast(void* data, std::size_t bytes, int root) override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, int peer, int tag) override;
  std::unique_ptr<Request> receive(void* data, std::size_t bytes, int peer, int tag) override;
  void barrier() override;
  std::unique_ptr<Request> start_all_reduce(void* data, std::size_t count, DType dtype,
                                            Reduce op) override;
  std::unique_ptr<Request> start_reduce_scatter(void* data, std::size_t count,
                                                DType dtype) override;
  std::unique_ptr<Request> start_all_gather(void* data, std::size_t count, DType dtype) override;
  std::unique_ptr<Request> start_all_gather(void* data, std::size_t count, DType dtype,
                                            PartArrivals& arrivals) override;
  std::unique_ptr<CapturedCollectives> capture(const std::function<void()>& work) override;
  double all_reduce(double value, Reduce op) override;
  std::unique_ptr<RegisteredBuffer> register_buffer(void* base, std::size_t bytes) override;
  void set_staging_buffer(void* base, std::size_t bytes, std::size_t min_bytes) override;

 private:
  using Done = std::shared_ptr<cuda::Event>;

  /// A route that begins or ends at this rank: its stream, and its transport.
  struct P2pRoute {
    Route route;
    cuda::Stream stream{/*high_priority=*/true};
    std::unique_ptr<PeerRoute> peer;       ///< null where the ends do not reach each other
    std::unique_ptr<NcclChannel> channel;  ///< of two ranks; null where `peer` is not
  };

  std::string description() const;
  std::unique_ptr<NcclChannel> open_group();
  void open_routes(const NcclOptions& options);
  /// Opens the NCCL communicator of a route, described by `where`.
  void open_channel(P2pRoute& route, const std::string& where);
  P2pRoute& p2p_route(const Route& route);

  /// The operation through peer memory; null where NCCL must do it.
  Done queue_to_peers(PeerKind kind, void* data, std::size_t part_bytes, DType dtype,
                      cudaStream_t stream);
  Done queue_all_reduce(void* data, std::size_t count, DType dtype, Reduce op, cudaStream_t stream);
  Done queue_reduce_scatter(void* data, std::size_t count, DType dtype, cudaStream_t stream);
  Done queue_all_gather(void* data, std::size_t count, DType dtype, cudaStream_t stream);
  /// An operation of NCCL; nothing in a capture, which then fails.
  template <typename Call>
  Done queue_to_nccl(const char* what, std::size_t bytes, cudaStream_t stream, Call&& call);
  /// Makes `stream` wait for the work enqueued on the compute stream, then calls `queue(stream)`.
  template <typename Queue>
  std::unique_ptr<Request> start(cudaStream_t stream, Queue&& queue);
  /// The stream of collectives that overlap with the compute stream.
  cudaStream_t side();

  const std::string name_;
  const std::unique_ptr<MpiCommunicator> ranks_;
  const cudaStream_t compute_;
  const Watched::Clock::duration timeout_;
  const std::shared_ptr<Watchdog> watchdog_ = Watchdog::shared();
  cuda::Event compute_ready_;  ///< the compute stream at the latest start()
  std::optional<cuda::Stream> side_;
  std::unique_ptr<NcclChannel> group_;
  std::unique_ptr<PeerExchange> peers_;  ///< null where the ranks do not reach each other
  std::vector<std::unique_ptr<P2pRoute>> routes_;
};

namespace {

/// Thread blocks of a message. Each occupies an SM while a send waits for its receiver; a few are
/// enough to move a message in a small fraction of a stage's compute time.
constexpr int kMessageBlocks = 4;

ncclUniqueId make_id(const std::string& where) {
  ncclUniqueId id;
  if (const ncclResult_t code = nccl().get_unique_id(&id); code != ncclSuccess)
    throw InternalError("{} could not start NCCL: {}", where, nccl_text(code, nullptr));
  return id;
}

constexpr std::size_t kFirstMessageBytes = 256;

void* allocate_message() {
  void* memory = nullptr;
  TRIREME_CUDA(cudaMalloc(&memory, kFirstMessageBytes));
  return memory;
}

/// "group 'data', rank 2 of 8".
std::string describe(const std::string& name, const MpiCommunicator& ranks) {
  return fmt::format("group '{}', rank {} of {}", name, ranks.rank(), ranks.size());
}

/// An operation on another stream than the compute stream.
class StreamRequest final : public DeviceRequest {
 public:
  StreamRequest(std::shared_ptr<cuda::Event> done, cudaStream_t compute)
      : done_(std::move(done)), compute_(compute) {}

  void wait() override {
    if (!done_) return;
    done_->hold(compute_);
    done_.reset();
  }
  void hold(CUstream_st* stream) const override {
    if (done_) done_->hold(stream);
  }

 private:
  std::shared_ptr<cuda::Event> done_;
  cudaStream_t compute_;
};

}  // namespace

// ---------------------------------------------------------------------------- life

NcclCommunicator::NcclCommunicator(MpiCommunicator& ranks, const std::string& name,
                                   cudaStream_t stream, const NcclOptions& options)
    : name_(name),
      ranks_(ranks.split(0, ranks.rank(), name)),
      compute_(stream),
      timeout_(to_duration(options.timeout_seconds)) {
  group_ = open_group();
  open_routes(options);
  if (options.through_peers) peers_ = PeerExchange::make(*ranks_, description(), timeout_);
}

NcclCommunicator::~NcclCommunicator() {
  // During an exception this rank must not wait for the others.
  if (std::uncaught_exceptions() > 0) return;
  const WatchedCall call(*watchdog_, description() + ": finishing its last operations", timeout_,
                         ranks_->ranks());
  cudaStreamSynchronize(compute_);
  if (side_) cudaStreamSynchronize(side_->get());
  for (const auto& route : routes_) cudaStreamSynchronize(route->stream.get());
}

std::string NcclCommunicator::description() const { return describe(name_, *ranks_); }

std::unique_ptr<NcclChannel> NcclCommunicator::open_group() {
  ncclUniqueId id{};
  if (rank() == 0) id = make_id(description());
  ranks_->broadcast(&id, sizeof id, 0);
  return std::make_unique<NcclChannel>(id, NcclChannel::Settings{.name = description(),
                                                                 .rank = rank(),
                                                                 .size = size(),
                                                                 .timeout = timeout_,
                                                                 .ranks = ranks_->ranks()});
}

// All ranks open the routes in the same order, so that they cannot deadlock.
void NcclCommunicator::open_routes(const NcclOptions& options) {
  for (const Route& route : options.routes) {
    const bool ends_here = route.source == rank() || route.destination == rank();
    const std::string where =
        fmt::format("{}: route {} -> {}", description(), route.source, route.destination);
    auto pair = ranks_->split(ends_here ? 0 : -1, rank(), where);
    if (!ends_here) continue;
    P2pRoute& opened = *routes_.emplace_back(std::make_unique<P2pRoute>());
    opened.route = route;
    opened.peer = PeerRoute::open(std::move(pair), options.message_bytes, where, timeout_);
    if (!opened.peer) open_channel(opened, where);
  }
}

// The first send and receive of a NCCL communicator block the host until both ends have enqueued
// them, so they happen here; later ones do not block.
void NcclCommunicator::open_channel(P2pRoute& route, const std::string& where) {
  const auto [source, destination, tag] = route.route;
  const bool sends = source == rank();
  ncclUniqueId id{};
  if (sends) {
    id = make_id(description());
    ranks_->send(&id, sizeof id, destination, tag)->wait();
  } else {
    ranks_->receive(&id, sizeof id, source, tag)->wait();
  }
  route.channel = std::make_unique<NcclChannel>(
      id,
      NcclChannel::Settings{.name = where,
                            .rank = sends ? 0 : 1,
                            .size = 2,
                            .max_blocks = kMessageBlocks,
                            .timeout = timeout_,
                            .ranks = std::make_shared<const Ranks>(Ranks{
                                ranks_->ranks()->at(source), ranks_->ranks()->at(destination)})});
  const std::unique_ptr<void, decltype(&cudaFree)> message(allocate_message(), &cudaFree);
  if (sends)
    send(message.get(), kFirstMessageBytes, destination, tag);
  else
    receive(message.get(), kFirstMessageBytes, source, tag);
  TRIREME_CUDA(cudaStreamSynchronize(route.stream.get()));
}

// ---------------------------------------------------------------------------- streams

template <typename Queue>
std::unique_ptr<Request> NcclCommunicator::start(cudaStream_t stream, Queue&& queue) {
  compute_ready_.record(compute_);
  compute_ready_.hold(stream);
  return std::make_unique<StreamRequest>(queue(stream), compute_);
}

cudaStream_t NcclCommunicator::side() {
  if (!side_) side_.emplace(/*high_priority=*/true);
  return side_->get();
}

// ---------------------------------------------------------------------------- collectives

std::unique_ptr<RegisteredBuffer> NcclCommunicator::register_buffer(void* base, std::size_t bytes) {
  return peers_ ? peers_->register_buffer(base, bytes) : nullptr;
}

void NcclCommunicator::set_staging_buffer(void* base, std::size_t bytes, std::size_t min_bytes) {
  if (peers_) peers_->set_staging_buffer(base, bytes, min_bytes);
}

NcclCommunicator::Done NcclCommunicator::queue_to_peers(PeerKind kind, void* data,
                                                        std::size_t part_bytes, DType dtype,
                                                        cudaStream_t stream) {
  if (!peers_) return nullptr;
  const PeerLane lane = stream == compute_ ? PeerLane::compute : PeerLane::overlapped;
  return peers_->queue(kind, data, part_bytes, dtype, lane, stream);
}

template <typename Call>
NcclCommunicator::Done NcclCommunicator::queue_to_nccl(const char* what, std::size_t bytes,
                                                       cudaStream_t stream, Call&& call) {
  if (!peers_ || !peers_->captures()) return group_->queue(what, bytes, stream, call);
  peers_->fail_capture();
  auto done = std::make_shared<cuda::Event>();
  done->record(stream);  // a capture ends where all its streams are joined
  return done;
}

NcclCommunicator::Done NcclCommunicator::queue_all_reduce(void* data, std::size_t count,
                                                          DType dtype, Reduce op,
                                                          cudaStream_t stream) {
  const std::size_t bytes = count * size_of(dtype);
  if (op == Reduce::sum && bytes % size() == 0)
    if (Done done = queue_to_peers(PeerKind::all_reduce, data, bytes / size(), dtype, stream))
      return done;
  return queue_to_nccl("all-reduce", bytes, stream, [&](ncclComm_t handle) {
    return nccl().all_reduce(data, data, count, nccl_type(dtype), nccl_operation(op), handle,
                             stream);
  });
}

NcclCommunicator::Done NcclCommunicator::queue_reduce_scatter(void* data, std::size_t count,
                                                              DType dtype, cudaStream_t stream) {
  const std::size_t part = count * size_of(dtype);
  if (Done done = queue_to_peers(PeerKind::reduce_scatter, data, part, dtype, stream)) return done;
  return queue_to_nccl("reduce-scatter", size() * part, stream, [&](ncclComm_t handle) {
    return nccl().reduce_scatter(data, static_cast<std::byte*>(data) + rank() * part, count,
                                 nccl_type(dtype), ncclSum, handle, stream);
  });
}

NcclCommunicator::Done NcclCommunicator::queue_all_gather(void* data, std::size_t count,
                                                          DType dtype, cudaStream_t stream) {
  const std::size_t part = count * size_of(dtype);
  if (Done done = queue_to_peers(PeerKind::all_gather, data, part, dtype, stream)) return done;
  return queue_to_nccl("all-gather", size() * part, stream, [&](ncclComm_t handle) {
    return nccl().all_gather(static_cast<std::byte*>(data) + rank() * part, data, count,
                             nccl_type(dtype), handle, stream);
  });
}

void NcclCommunicator::all_reduce(void* data, std::size_t count, DType dtype, Reduce op) {
  queue_all_reduce(data, count, dtype, op, compute_);
}

void NcclCommunicator::reduce_scatter(void* data, std::size_t count, DType dtype) {
  queue_reduce_scatter(data, count, dtype, compute_);
}

void NcclCommunicator::reduce_scatter_terms(void* data, std::size_t count, DType dtype,
                                            PeerTerms& terms) {
  terms = {};
  if (!peers_ || !peers_->queue_terms(data, count * size_of(dtype), compute_, terms))
    reduce_scatter(data, count, dtype);
}

void NcclCommunicator::all_gather(void* data, std::size_t count, DType dtype) {
  queue_all_gather(data, count, dtype, compute_);
}

void NcclCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  queue_to_nccl("broadcast", bytes, compute_, [&](ncclComm_t handle) {
    return nccl().broadcast(data, data, bytes, ncclChar, root, handle, compute_);
  });
}

std::unique_ptr<Request> NcclCommunicator::start_all_reduce(void* data, std::size_t count,
                                                            DType dtype, Reduce op) {
  return start(side(), [&](cudaStream_t stream) {
    return queue_all_reduce(data, count, dtype, op, stream);
  });
}

std::unique_ptr<Request> NcclCommunicator::start_reduce_scatter(void* data, std::size_t count,
                                                                DType dtype) {
  return start(side(), [&](cudaStream_t stream) {
    return queue_reduce_scatter(data, count, dtype, stream);
  });
}

std::unique_ptr<Request> NcclCommunicator::start_all_gather(void* data, std::size_t count,
                                                            DType dtype) {
  return start(side(), [&](cudaStream_t stream) -> Done {
    PartArrivals unused;
    if (peers_)
      if (Done done = peers_->queue_gather(data, count * size_of(dtype), stream, unused))
        return done;
    return queue_all_gather(data, count, dtype, stream);
  });
}

std::unique_ptr<Request> NcclCommunicator::start_all_gather(void* data, std::size_t count,
                                                            DType dtype, PartArrivals& arrivals) {
  arrivals = {};
  if (peers_) {
    compute_ready_.record(compute_);
    compute_ready_.hold(side());
    const std::size_t part = count * size_of(dtype);
    Done done;
    if (part >= min_gather_bytes(size())) done = peers_->queue_gather(data, part, side(), arrivals);
    if (done) return std::make_unique<StreamRequest>(std::move(done), compute_);
  }
  all_gather(data, count, dtype);
  return std::make_unique<FinishedRequest>();
}

void NcclCommunicator::barrier() {
  TRIREME_CUDA(cudaStreamSynchronize(compute_));
  ranks_->barrier();
}

std::unique_ptr<CapturedCollectives> NcclCommunicator::capture(const std::function<void()>& work) {
  return peers_ ? peers_->capture(compute_, work) : nullptr;
}

double NcclCommunicator::all_reduce(double value, Reduce op) {
  return ranks_->all_reduce(value, op);
}

// ---------------------------------------------------------------------------- messages

NcclCommunicator::P2pRoute& NcclCommunicator::p2p_route(const Route& route) {
  const auto found = std::find_if(routes_.begin(), routes_.end(),
                                  [&](const auto& opened) { return opened->route == route; });
  TRIREME_CHECK(found != routes_.end(), "{}: no route {} -> {} of tag {} was opened", description(),
                route.source, route.destination, route.tag);
  return **found;
}

std::unique_ptr<Request> NcclCommunicator::send(const void* data, std::size_t bytes, int peer,
                                                int tag) {
  P2pRoute& to = p2p_route({.source = rank(), .destination = peer, .tag = tag});
  return start(to.stream.get(), [&](cudaStream_t stream) {
    if (to.peer) return to.peer->send(data, bytes, stream);
    return to.channel->queue("send", bytes, stream, [&](ncclComm_t handle) {
      return nccl().send(data, bytes, ncclChar, /*peer=*/1, handle, stream);
    });
  });
}

std::unique_ptr<Request> NcclCommunicator::receive(void* data, std::size_t bytes, int peer,
                                                   int tag) {
  P2pRoute& from = p2p_route({.source = peer, .destination = rank(), .tag = tag});
  return start(from.stream.get(), [&](cudaStream_t stream) {
    if (from.peer) return from.peer->receive(data, bytes, stream);
    return from.channel->queue("receive", bytes, stream, [&](ncclComm_t handle) {
      return nccl().recv(data, bytes, ncclChar, /*peer=*/0, handle, stream);
    });
  });
}

// ---------------------------------------------------------------------------- factory

std::unique_ptr<Communicator> make_device_communicator(MpiCommunicator& ranks,
                                                       const std::string& name, CUstream_st* stream,
                                                       const NcclOptions& options) {
  if (ranks.size() == 1) return std::make_unique<SerialCommunicator>();
  if (!options.debug.empty()) ::setenv("NCCL_DEBUG", options.debug.c_str(), /*overwrite=*/1);
  nccl();  // before anything collective: where it is missing, every rank throws
  const auto watchdog = Watchdog::shared();
  const WatchedCall call(*watchdog,
                         describe(name, ranks) + ": starting NCCL, which every rank must join,",
                         to_duration(options.timeout_seconds), ranks.ranks());
  return std::make_unique<NcclCommunicator>(ranks, name, stream, options);
}

}  // namespace trireme::comm
