#include "comm/peer/peer_route.hpp"

#include <exception>
#include <utility>

#include "comm/peer/stream_flags.hpp"
#include "core/cuda/check.hpp"

namespace trireme::comm {
PeerRoute::PeerRoute(std::unique_ptr<MpiCommunicator> pair, std::size_t most_bytes,
                     const std::string& description, Duration timeout)
    : pair_(std::move(pair)),
      most_bytes_(most_bytes),
      operations_(description, timeout, pair_->ranks()) {}

std::unique_ptr<PeerRoute> PeerRoute::open(std::unique_ptr<MpiCommunicator> pair,
                                           std::size_t most_bytes, const std::string& description,
                                           Duration timeout) {
  if (most_bytes == 0 || !peers_reach_each_other(*pair)) return nullptr;
  std::unique_ptr<PeerRoute> route(
      new PeerRoute(std::move(pair), most_bytes, description, timeout));
  void* block = nullptr;
  TRIREME_CUDA(cudaMalloc(&block, peer_route_bytes(most_bytes)));
  route->block_.reset(block);
  TRIREME_CUDA(cudaMemset(block, 0, kPeerRouteFlagBytes));
  route->memory_ = PeerMemory::open(*route->pair_, block, peer_route_bytes(most_bytes));
  return route->memory_ ? std::move(route) : nullptr;
}

PeerRoute::~PeerRoute() {
  // What may still run uses the block: it goes with the process.
  if (std::uncaught_exceptions() > 0) block_.release();
}

std::uint32_t* PeerRoute::flag_of(int end) const {
  return reinterpret_cast<std::uint32_t*>(memory_->of_rank(end, block_.get()));
}

std::byte* PeerRoute::mailbox_of(int end) const {
  return memory_->of_rank(end, block_.get()) + kPeerRouteFlagBytes;
}

std::uint32_t PeerRoute::next_message(std::size_t bytes) {
  TRIREME_CHECK(bytes <= most_bytes_, "a message of {} bytes on a route for {}", bytes,
                most_bytes_);
  return ++messages_;
}

std::shared_ptr<cuda::Event> PeerRoute::send(const void* data, std::size_t bytes,
                                             cudaStream_t stream) {
  const int here = pair_->rank(), there = 1 - here;
  const std::uint32_t message = next_message(bytes);
  return operations_.queue("send to a peer", bytes, stream, [&] {
    await_flag(stream, flag_of(here), message - 1);  // the mailbox is empty
    TRIREME_CUDA(cudaMemcpyAsync(mailbox_of(there), data, bytes, cudaMemcpyDefault, stream));
    raise_flag(stream, flag_of(there), message);
  });
}

std::shared_ptr<cuda::Event> PeerRoute::receive(void* data, std::size_t bytes,
                                                cudaStream_t stream) {
  const int here = pair_->rank(), there = 1 - here;
  const std::uint32_t message = next_message(bytes);
  return operations_.queue("receive from a peer", bytes, stream, [&] {
    await_flag(stream, flag_of(here), message);
    TRIREME_CUDA(cudaMemcpyAsync(data, mailbox_of(here), bytes, cudaMemcpyDefault, stream));
    raise_flag(stream, flag_of(there), message);
  });
}

}  // namespace trireme::comm
