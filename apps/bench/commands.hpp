// The subcommands of trireme-bench, one file each.
#pragma once

#include "core/error.hpp"

namespace trireme::bench {

/// `trireme-bench gemm`: the products of a transformer against OpenBLAS's own sgemm.
ExitCode run_gemm(int argc, char** argv);

/// `trireme-bench kernels`: every operation of a GPT-2 124M step.
ExitCode run_kernels(int argc, char** argv);

/// `trireme-bench step DECK`: whole training steps, and memory against the plan.
ExitCode run_step(int argc, char** argv);

}  // namespace trireme::bench
