// The GEMM for whatever cuBLASLt has no kernel for, and random operands to time it with.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {

/// The GEMM of args, of any size and alignment, each element summed in fp32 in the order of k.
/// Correct rather than quick.
void gemm_plain(const Gemm& args, const Context& context);

/// Writes numbers between -1 and 1 over `tensor`: zeros would cost the GPU less power, and so run
/// faster, than what is multiplied later.
void fill_random(const Tensor& tensor, std::uint64_t seed, const Context& context);

}  // namespace trireme::kernels::cuda
