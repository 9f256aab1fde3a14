// Functions of the CUDA driver, found when they are first needed: programs that link the driver
// would not start on machines without it. Through them streams write and await flags.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "core/tensor.hpp"

namespace trireme::cuda {

/// The address of the driver's function `name` as CUDA 12 defines it. Throws InternalError where
/// the driver is older.
void* driver_function(const char* name);

/// Throws InternalError with the driver's text unless `code` is CUDA_SUCCESS; `what` was asked.
void check_driver(CUresult code, const std::string& what);

// ---- flags in GPU memory, this GPU's or a peer's: neither a write nor a wait needs a kernel, and
// therefore a free SM

/// Enqueues a write of `epoch` to `flag` after all earlier work on `stream`.
void raise_flag(cudaStream_t stream, std::uint32_t* flag, std::uint32_t epoch);

/// Makes later work on `stream` wait until `flag` has reached `epoch`; see flag_reached().
void await_flag(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t epoch);

/// Makes later work on `stream` wait until all parts are there.
void await_parts(cudaStream_t stream, const PartArrivals& arrivals);

}  // namespace trireme::cuda
