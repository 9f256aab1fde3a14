// The communicator of a group of one rank: nothing to exchange, no MPI needed.
#pragma once

#include "comm/communicator.hpp"
#include "core/error.hpp"

namespace trireme::comm {

/// A group of one: every collective leaves its data as it is. There is no peer to send to or to
/// receive from: both throw InternalError.
class SerialCommunicator final : public Communicator {
 public:
  using Communicator::all_reduce;

  const std::string& name() const override { return name_; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void all_reduce(void*, std::size_t, DType, Reduce) override {}
  void reduce_scatter(void*, std::size_t, DType) override {}
  void all_gather(void*, std::size_t, DType) override {}
  void broadcast(void*, std::size_t, int) override {}
  void barrier() override {}

  std::unique_ptr<Request> send(const void*, std::size_t, int peer, int) override {
    throw InternalError("a group of one rank has no peer {} to send to", peer);
  }
  std::unique_ptr<Request> receive(void*, std::size_t, int peer, int) override {
    throw InternalError("a group of one rank has no peer {} to receive from", peer);
  }

 private:
  std::string name_ = "serial";
};

}  // namespace trireme::comm
