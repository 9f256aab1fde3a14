// Collectives and point-to-point messages between the ranks of a group, such as one axis of the
// layout; and communicators over the memory of GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/peer_terms.hpp"
#include "core/tensor.hpp"

struct CUstream_st;

namespace trireme::comm {

/// How values are combined.
enum class Reduce { sum, max, min };

/// A message or collective in flight. Its buffer must not be used until wait() has returned.
class Request {
 public:
  virtual ~Request() = default;
  /// In host memory, blocks until the operation is complete. In GPU memory, makes later work on the
  /// compute stream wait for it; the host does not block. A second call does nothing.
  virtual void wait() = 0;
};

/// The request of an operation that is already complete.
class FinishedRequest final : public Request {
 public:
  void wait() override {}
};

/// The registration of a buffer with a group; ends with this object.
class RegisteredBuffer {
 public:
  virtual ~RegisteredBuffer() = default;
};

/// Collectives that are part of a CUDA graph.
class CapturedCollectives {
 public:
  virtual ~CapturedCollectives() = default;
  /// Calls `launch`, which launches the graph on the compute stream; what start_*() of the group
  /// enqueued has been waited for. Collective.
  virtual void run(const std::function<void()>& launch) = 0;
};

/// A group of ranks. Every method but send and receive is collective over the group: all its ranks
/// call it, in the same order, with equal counts and types. Buffers are in host memory for MPI, and
/// in GPU memory for NCCL, whose operations are enqueued on the compute stream. Failures throw
/// CommunicationError (comm/watchdog.hpp) with the library's text, the group's name, the rank and
/// the host.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The group's name, for messages.
  virtual const std::string& name() const = 0;
  /// This rank's number in the group, 0 .. size() - 1.
  virtual int rank() const = 0;
  /// The number of ranks.
  virtual int size() const = 0;

  /// Combines `count` elements in place; every rank gets the same bits.
  virtual void all_reduce(void* data, std::size_t count, DType dtype, Reduce op) = 0;
  /// Sums `data`, size() * count elements, and writes the sum of part rank() to that part of
  /// `data`; the other parts are undefined afterwards.
  virtual void reduce_scatter(void* data, std::size_t count, DType dtype) = 0;
  /// Gathers part rank() of `data` (count elements) from every rank into all size() parts, in
  /// place.
  virtual void all_gather(void* data, std::size_t count, DType dtype) = 0;
  /// Copies `bytes` of `root` to every rank.
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  /// Starts sending `bytes` to `peer`. Messages of one tag between two ranks keep their order.
  virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int peer, int tag) = 0;
  /// Starts receiving `bytes` from `peer`.
  virtual std::unique_ptr<Request> receive(void* data, std::size_t bytes, int peer, int tag) = 0;
  /// Returns when every rank has called it and has completed its work enqueued before.
  virtual void barrier() = 0;

  /// Registers [base, base + bytes) for collectives, as ncclCommRegister() does: every rank
  /// allocates and uses it alike, with the buffers of an operation at the same offset on all ranks.
  /// Ranks that reach each other's memory then exchange without copies. Destroying the result is
  /// collective; it must be destroyed before the memory and the group. Null where there is no
  /// advantage.
  virtual std::unique_ptr<RegisteredBuffer> register_buffer(void* base, std::size_t bytes) {
    (void)base, (void)bytes;
    return nullptr;
  }

  /// Sets a staging buffer at `base`, inside a registered buffer and at the same offset on every
  /// rank. start_reduce_scatter() and start_all_reduce() of at least `min_bytes` may pass through
  /// it, in pieces, and then take fewer SMs from the work that they overlap with. Until the
  /// registration ends.
  virtual void set_staging_buffer(void* base, std::size_t bytes, std::size_t min_bytes) {
    (void)base, (void)bytes, (void)min_bytes;
  }

  /// all_reduce, reduce_scatter and all_gather that overlap with later work until wait(). In host
  /// memory they are complete when these return.
  virtual std::unique_ptr<Request> start_all_reduce(void* data, std::size_t count, DType dtype,
                                                    Reduce op) {
    all_reduce(data, count, dtype, op);
    return std::make_unique<FinishedRequest>();
  }
  virtual std::unique_ptr<Request> start_reduce_scatter(void* data, std::size_t count,
                                                        DType dtype) {
    reduce_scatter(data, count, dtype);
    return std::make_unique<FinishedRequest>();
  }
  virtual std::unique_ptr<Request> start_all_gather(void* data, std::size_t count, DType dtype) {
    all_gather(data, count, dtype);
    return std::make_unique<FinishedRequest>();
  }

  /// start_all_gather of a matrix, whose rows lie in size() parts, for the GEMM that is enqueued
  /// next on the compute stream and reads it: `arrivals` tell it what has come. Without them, where
  /// ranks do not reach each other's memory, all has.
  virtual std::unique_ptr<Request> start_all_gather(void* data, std::size_t count, DType dtype,
                                                    PartArrivals& arrivals) {
    arrivals = {};
    all_gather(data, count, dtype);
    return std::make_unique<FinishedRequest>();
  }

  /// reduce_scatter() for the kernel that is enqueued next on the compute stream and adds the terms
  /// itself: `terms` tell it where part rank() of each rank's `data` lies. `data` may be written
  /// again after the group's next collective on the compute stream, which every rank starts when it
  /// has read them. Where ranks do not reach each other's memory, `terms` are none and the sum is
  /// done.
  virtual void reduce_scatter_terms(void* data, std::size_t count, DType dtype, PeerTerms& terms) {
    terms = {};
    reduce_scatter(data, count, dtype);
  }

  /// Calls `work` while the compute stream is captured as a CUDA graph, so that its collectives
  /// become part of the graph; start_*() are waited for before `work` returns. Null where one
  /// cannot be captured, on all ranks alike: the graph must not be launched. Collective; the group
  /// must outlive the result.
  virtual std::unique_ptr<CapturedCollectives> capture(const std::function<void()>& work) {
    (void)work;
    return nullptr;
  }

  /// The sum, maximum or minimum of one value of the host over the group.
  virtual double all_reduce(double value, Reduce op) {
    all_reduce(&value, 1, DType::f64, op);
    return value;
  }
};

/// A group of one rank, which needs no MPI: collectives do nothing; send() and receive() throw
/// InternalError.
class SerialCommunicator final : public Communicator {
 public:
  using Communicator::all_reduce;

  const std::string& name() const override { return name_; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void all_reduce(void*, std::size_t, DType, Reduce) override {}
  void reduce_scatter(void*, std::size_t, DType) override {}
  void all_gather(void*, std::size_t, DType) override {}
  std::unique_ptr<CapturedCollectives> capture(const std::function<void()>& work) override {
    work();
    return std::make_unique<NoCollectives>();
  }
  void broadcast(void*, std::size_t, int) override {}
  void barrier() override {}

  std::unique_ptr<Request> send(const void*, std::size_t, int peer, int) override {
    throw InternalError("a group of one rank has no peer {} to send to", peer);
  }
  std::unique_ptr<Request> receive(void*, std::size_t, int peer, int) override {
    throw InternalError("a group of one rank has no peer {} to receive from", peer);
  }

 private:
  struct NoCollectives final : CapturedCollectives {
    void run(const std::function<void()>& launch) override { launch(); }
  };

  std::string name_ = "serial";
};

// ---------------------------------------------------------------------------- routes

/// Tags of the messages between the stages of a pipeline.
inline constexpr int kActivationTag = 0;
inline constexpr int kGradientTag = 1;

/// A P2P route: messages of one tag from one rank of a group to another. They arrive in order;
/// messages on different routes never wait for each other.
struct Route {
  int source = 0;
  int destination = 0;
  int tag = 0;

  bool operator==(const Route&) const = default;
};

/// The routes of a pipeline of `stages` ranks: activations from each stage to the next, gradients
/// back; with several chunks per stage also from the last stage to the first. Those of even stages
/// come first, so that ranks that open them in this order open many concurrently.
inline std::vector<Route> pipeline_routes(int stages, int chunks = 1) {
  std::vector<Route> routes;
  for (const int parity : {0, 1}) {
    for (int stage = parity; stage + 1 < stages; stage += 2) {
      routes.push_back({stage, stage + 1, kActivationTag});
      routes.push_back({stage + 1, stage, kGradientTag});
    }
  }
  if (chunks > 1) {
    routes.push_back({stages - 1, 0, kActivationTag});
    routes.push_back({0, stages - 1, kGradientTag});
  }
  return routes;
}

/// Flag and padding in front of the mailbox of a route through peer memory: a cache line of its
/// own.
inline constexpr std::size_t kPeerRouteFlagBytes = 256;

/// GPU memory that each end of a route through peer memory allocates for messages of at most
/// `max_bytes`: a multiple of the 2 MiB blocks that CUDA maps.
constexpr std::size_t peer_route_bytes(std::size_t max_bytes) {
  constexpr std::size_t kBlock = std::size_t{2} << 20;
  return (kPeerRouteFlagBytes + max_bytes + kBlock - 1) / kBlock * kBlock;
}

// Copy engines leave all SMs to GEMMs, but each of their copies takes microseconds to begin, one
// after the other: kernels finish smaller exchanges through peer memory sooner. Measured on H100s.

/// Minimum bytes of a rank's part that copy engines all-gather under a GEMM.
constexpr std::size_t min_gather_bytes(std::int64_t ranks) {
  return std::size_t{ranks == 2 ? 1u : 4u} << 20;
}
/// Minimum bytes of all ranks' parts that copy engines reduce-scatter.
constexpr std::size_t min_reduce_scatter_bytes(std::int64_t ranks) {
  return std::size_t{ranks == 2 ? 0u : 32u} << 20;
}

// ---------------------------------------------------------------------------- the memory of GPUs

class MpiCommunicator;

/// NCCL's version, "2.28.9"; "" in a build without CUDA. Throws Error (exit 1) when it is missing.
std::string nccl_version();

struct NcclOptions {
  /// The collective time-out: an operation that blocks its stream for longer ends the job.
  double timeout_seconds = 600.0;
  /// NCCL_DEBUG, what NCCL prints about itself: WARN, INFO, ...; empty leaves the environment's.
  std::string debug;
  /// The routes that messages may take, the same list on all ranks; see pipeline_routes().
  std::vector<Route> routes;
  /// Messages use the copy engines where the two ends of a route reach each other's GPUs, instead
  /// of NCCL, in parts of at most so many bytes, for which each end allocates memory; 0: always
  /// NCCL.
  std::size_t message_bytes = 0;
  /// All-reduces (sums), reduce-scatters and all-gathers in registered buffers use peer memory
  /// where 2, 4 or 8 ranks of one node reach each other's GPUs, instead of NCCL.
  bool through_peers = false;
};

/// A request whose end other streams than the compute stream can wait for, before wait().
class DeviceRequest : public Request {
 public:
  virtual void hold(CUstream_st* stream) const = 0;
};

/// A communicator of the ranks of `ranks` over the memory of the GPUs that they have selected, one
/// each; `name` appears in messages. A group of one rank does not need NCCL.
///
/// Collectives are enqueued on `stream`, the backend's compute stream. The host does not wait.
/// start_*(), send() and receive() use other streams: they run after the work enqueued on `stream`
/// before them, and Request::wait() makes later work on `stream` wait for them.
///
/// Each route has its own NCCL communicator of two ranks and its own stream, because NCCL
/// serializes the operations of a communicator and a send completes when it is received: on one
/// communicator, two stages that send each other an activation and a gradient before they receive
/// would deadlock.
///
/// The watchdog ends the job on an asynchronous NCCL error, or when an operation has been the
/// oldest of its communicator for options.timeout_seconds.
///
/// Throws Error (exit 1) when NCCL or CUDA is missing. Collective over `ranks`, which is not used
/// afterwards.
std::unique_ptr<Communicator> make_device_communicator(MpiCommunicator& ranks,
                                                       const std::string& name, CUstream_st* stream,
                                                       const NcclOptions& options);

}  // namespace trireme::comm
