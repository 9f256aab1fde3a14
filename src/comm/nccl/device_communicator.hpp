// Communicators over the memory of GPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "comm/routes.hpp"

struct CUstream_st;

namespace trireme::comm {

/// NCCL's version, "2.28.9"; "" in a build without CUDA. Throws Error (exit 1) when it is missing.
std::string nccl_version();

struct NcclOptions {
  /// An operation that holds up its stream for longer ends the job.
  double timeout_seconds = 600.0;
  /// NCCL_DEBUG, what NCCL prints about itself: WARN, INFO, ...; empty leaves the environment's.
  std::string debug;
  /// The routes that messages may take, the same list on all ranks; see pipeline_routes().
  std::vector<Route> routes;
  /// Messages of at most so many bytes go by the copy engines where the two ends of a route reach
  /// each other's GPUs, instead of through NCCL. Each end of a route takes memory for one.
  std::size_t message_bytes = 0;
  /// Sums, reduce-scatters and all-gathers in memory that was given to share() go through peer
  /// memory where 2, 4 or 8 ranks of one node reach each other's GPUs, instead of through NCCL.
  bool through_peers = false;
};

/// A communicator of the ranks of `ranks` over the memory of the GPUs that they have selected, one
/// each; `name` appears in messages. Nothing is exchanged through NCCL in a group of one, which
/// does not need it.
///
/// Collectives run on `stream`, the one that the backend computes on: each sees what was queued
/// there before it, and what is queued after it sees its result. The host does not wait. What
/// start_*(), send() and receive() begin runs on streams of its own: it sees what was queued on
/// `stream` before, and after Request::wait() what is queued there sees its result.
///
/// A route has a NCCL communicator of two ranks and a stream to itself, because NCCL runs the
/// operations of a communicator one after the other and a send lasts until its receiver has it: on
/// one communicator for all, two stages that send each other an activation and a gradient before
/// they receive would wait forever.
///
/// The watchdog ends the job when NCCL reports an error that no call returned, or when an operation
/// has been the oldest of its communicator for options.timeout_seconds.
///
/// Throws Error (exit 1) when NCCL or CUDA is missing. Collective over `ranks`, which are not used
/// afterwards.
std::unique_ptr<Communicator> make_device_communicator(MpiCommunicator& ranks,
                                                       const std::string& name, CUstream_st* stream,
                                                       const NcclOptions& options);

}  // namespace trireme::comm
