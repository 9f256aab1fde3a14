// NCCL's functions, loaded when a run first needs them: programs start without NCCL, and runs on
// one GPU never ask for it.
#pragma once

#include <nccl.h>

#include <string>

namespace trireme::comm {

/// The functions that Trireme calls, with the types that nccl.h declares.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
};

/// The library, loaded by the first call. Throws Error (exit 1) saying what to install when there
/// is none.
const Nccl& nccl();

/// `code` in NCCL's words, with what it last complained about on `handle` (which may be null).
std::string nccl_text(ncclResult_t code, ncclComm_t handle);

}  // namespace trireme::comm
