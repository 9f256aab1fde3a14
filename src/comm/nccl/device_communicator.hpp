// Communicators over the memory of GPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"

struct CUstream_st;

namespace trireme::comm {

/// NCCL's version, "2.28.9"; "" in a build without CUDA. Throws Error (exit 1) when it is missing.
std::string nccl_version();

struct NcclOptions {
  /// The collective time-out: an operation that blocks its stream for longer ends the job.
  double timeout_seconds = 600.0;
  /// NCCL_DEBUG, what NCCL prints about itself: WARN, INFO, ...; empty leaves the environment's.
  std::string debug;
  /// The routes that messages may take, the same list on all ranks; see pipeline_routes().
  std::vector<Route> routes;
  /// Messages of at most so many bytes use the copy engines where the two ends of a route reach
  /// each other's GPUs, instead of NCCL. Each end of a route allocates memory for one.
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
