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

/// Enqueues copies of the parts of `matrix`, `part_bytes` each, to where `pushes` say.
void push_parts(cudaStream_t stream, const PartPushes& pushes, const void* matrix,
                std::size_t part_bytes);

}  // namespace trireme::cuda
