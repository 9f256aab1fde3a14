// Scratch memory that the CUDA kernels need, by operation: pure arithmetic, so that plans for GPUs
// can be made on machines without one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::kernels::cuda {

/// What cuBLASLt may use: enough for split-K on Hopper.
inline constexpr std::size_t kGemmWorkspace = std::size_t{64} << 20;

}  // namespace trireme::kernels::cuda
