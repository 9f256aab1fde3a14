// What the subcommands of trireme-bench measure on a GPU.
#pragma once

#include "bench/table.hpp"

namespace trireme::bench::gpu {

/// The GEMMs of GPTs of several sizes: the kernel that cuBLASLt's heuristic puts first against
/// the fastest; and those with a GELU or a bias gradient, fused against in two kernels.
/// Throws Error (exit 1) when there is no GPU.
void measure_gemms(const Settings& settings);

/// Every operation of a training step with `dropout`, for several shapes of GPTs, against what the
/// GPU can do at most. Throws Error (exit 1) when there is no GPU.
void measure_kernels(const Settings& settings, double dropout);

}  // namespace trireme::bench::gpu
