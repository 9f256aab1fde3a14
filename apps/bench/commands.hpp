// The subcommands of trireme-bench, one file each.
#pragma once

#include "core/error.hpp"

namespace trireme::bench {

/// `trireme-bench burn-in`: repeated work whose results must not change.
ExitCode run_burn_in(int argc, char** argv);

/// `trireme-bench comm`: what ranks send each other, over MPI or NCCL.
ExitCode run_comm(int argc, char** argv);

/// `trireme-bench gemm`: the GEMMs of transformers, on the host against OpenBLAS's own sgemm, on
/// a GPU cuBLASLt's first choice against the fastest.
ExitCode run_gemm(int argc, char** argv);

/// `trireme-bench generate DECK`: prompts and tokens, in one sequence and in many.
ExitCode run_generate(int argc, char** argv);

/// `trireme-bench kernels`: every operation of a training step.
ExitCode run_kernels(int argc, char** argv);

/// `trireme-bench profile DECK`: the times of passes, collectives and copies that trireme-plan
/// reads.
ExitCode run_profile(int argc, char** argv);

/// `trireme-bench step DECK`: whole training steps, and memory against the plan.
ExitCode run_step(int argc, char** argv);

}  // namespace trireme::bench
