// Which of cuBLASLt's candidates is the fastest, found by running them.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cuda/gemm/matmul.hpp"
#include "kernels/gemm.hpp"

namespace trireme::kernels::cuda {

/// The fastest of `candidates` for a product of the shapes of `args`, on random operands in memory
/// of its own; where that is not to be had, A and B are those of `args`, and so is C if it is to
/// be overwritten anyway. Without memory for a C that is added to, the first candidate, untimed.
/// Nothing when none runs. `warm`: the GPU has been under load until now. Waits for
/// context.stream.
std::optional<Algorithm> fastest(const Matmul& matmul, const std::vector<Algorithm>& candidates,
                                 const Gemm& args, const Context& context, bool warm);

}  // namespace trireme::kernels::cuda
