// Words in GPU memory, a rank's own or a peer's, that streams write and wait for: ranks hear from
// each other in the midst of their queues without a kernel, which would need a free multiprocessor.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::comm {

/// Writes `epoch` to `flag` when all that `stream` was asked before is done and can be seen.
void raise_flag(cudaStream_t stream, std::uint32_t* flag, std::uint32_t epoch);

/// Holds what `stream` is asked from now on until `flag` has come to `epoch`, in the sense of
/// peer_reached().
void await_flag(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t epoch);

}  // namespace trireme::comm
