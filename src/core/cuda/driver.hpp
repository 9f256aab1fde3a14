// Functions of the CUDA driver, found when they are first needed: programs that link the driver
// would not start on machines without it.
#pragma once

#include <cuda.h>

#include <string>

#include "core/error.hpp"

namespace trireme::cuda {

/// The address of the driver's function `name` as CUDA 12 defines it. Throws InternalError where
/// the driver is older.
void* driver_function(const char* name);

/// Throws InternalError with the driver's text unless `code` is CUDA_SUCCESS; `what` was asked.
void check_driver(CUresult code, const std::string& what);

}  // namespace trireme::cuda
