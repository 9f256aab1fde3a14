// The launchers of the GEMM kernels for Hopper, each compiled in a file named after it.
#pragma once

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/gemm/matmul.hpp"
#include "kernels/cuda/gemm/plans.hpp"

namespace trireme::kernels::cuda {

/// One GEMM, what it needs besides its operands, and the SMs that it may use.
struct HopperGemm {
  const Product& product;
  const Operands& operands;
  unsigned* turns;    ///< zeros, and zeros again when the kernel is done
  unsigned* tickets;  ///< likewise, one
  int multiprocessors;
};

/// C = A B^T + bias.
void launch_forward(const HopperGemm& gemm, const Context& context);
/// aux = A B^T + bias, C = gelu(aux).
void launch_forward_gelu(const HopperGemm& gemm, const Context& context);
/// C = A B * gelu'(aux); adds C's column sums to `vector`. Needs gelu_gradient_partials of
/// workspace.
void launch_gelu_gradient(const HopperGemm& gemm, const Context& context);
std::size_t gelu_gradient_partials(const Product& product);
/// C += A^T B in fp32.
void launch_weight_gradient(const HopperGemm& gemm, const Context& context);
/// The same; adds the sums of A over k to `vector`.
void launch_weight_bias_gradient(const HopperGemm& gemm, const Context& context);
/// The most turns that the last two take.
std::size_t weight_gradient_turns(const Product& product);

}  // namespace trireme::kernels::cuda
