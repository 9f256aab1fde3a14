// The communicator over the memory of GPUs: make_device_communicator() makes it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/nccl/device_communicator.hpp"
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
  double all_reduce(double value, Reduce op) override;
  std::unique_ptr<RegisteredBuffer> register_buffer(void* base, std::size_t bytes) override;
  void set_staging_buffer(void* base, std::size_t bytes) override;

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

}  // namespace trireme::comm
