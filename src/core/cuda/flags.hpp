// Flags in GPU memory, this GPU's or a peer's, written and awaited by streams: neither needs a
// kernel, and therefore a free SM.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/row_parts.hpp"

namespace trireme::cuda {

/// Enqueues a write of `epoch` to `flag` after all earlier work on `stream`.
void raise_flag(cudaStream_t stream, std::uint32_t* flag, std::uint32_t epoch);

/// Makes later work on `stream` wait until `flag` has reached `epoch`; see flag_reached().
void await_flag(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t epoch);

/// Makes later work on `stream` wait until all parts are there.
void await_parts(cudaStream_t stream, const PartArrivals& arrivals);

}  // namespace trireme::cuda
