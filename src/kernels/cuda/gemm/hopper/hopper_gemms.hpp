// The own GEMM kernels for Hopper, and their launchers.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/gemm/matmul.hpp"
#include "kernels/cuda/gemm/plans.hpp"

namespace trireme::kernels::cuda {

/// One GEMM, what it needs besides its operands, and the SMs that it may use.
struct HopperGemm {
  const GemmProblem& problem;
  const Operands& operands;
  unsigned* turns;    ///< zeros, and zeros again when the kernel is done
  unsigned* tickets;  ///< likewise, one
  int sms;
};

/// C = A B^T + bias.
void launch_forward(const HopperGemm& gemm, const Context& context);
/// Whether the rows of C can be had in `parts` parts: see Operands::arrivals.
bool has_row_parts(const GemmProblem& problem, int parts);
/// aux = A B^T + bias, C = gelu(aux).
void launch_forward_gelu(const HopperGemm& gemm, const Context& context);
void launch_forward_exact_gelu(const HopperGemm& gemm, const Context& context);
/// C = A B^T, aux [m, n / 2] = silu(gate) * up of C [m, n] = (gate, up).
void launch_forward_gated(const HopperGemm& gemm, const Context& context);
/// C = A B * gelu'(aux); adds C's column sums to `vector`. Needs gelu_gradient_partials of
/// workspace.
void launch_gelu_gradient(const HopperGemm& gemm, const Context& context);
void launch_exact_gelu_gradient(const HopperGemm& gemm, const Context& context);
std::size_t gelu_gradient_partials(const GemmProblem& problem);
/// C [m, 2 n] = (A B * up * silu'(gate), A B * silu(gate)) of aux [m, 2 n] = (gate, up).
void launch_gated_gradient(const HopperGemm& gemm, const Context& context);
/// C += A^T B in fp32.
void launch_weight_gradient(const HopperGemm& gemm, const Context& context);
/// The same; adds the sums of A over k to `vector`.
void launch_weight_bias_gradient(const HopperGemm& gemm, const Context& context);
/// The most turns that the last two take.
std::size_t weight_gradient_turns(const GemmProblem& problem);

/// Whether `algorithm` names an own kernel, of this version or another.
bool is_own(const Algorithm& algorithm);

/// The own kernels on the current GPU. They have what cuBLASLt lacks, or is slow at, on Hopper: the
/// forward GEMM of a linear layer, with bias, or with bias and GELU, or with SwiGLU; its input
/// gradient times GELU's, with the column sums, or through SwiGLU's; its weight gradient, with the
/// bias gradient.
/// In bf16 and fp16, fp32 accumulation, matrices aligned to 16 bytes with rows of a multiple of 16
/// bytes. The same operands give the same bits each time. All calls go to one stream.
class HopperGemms {
 public:
  HopperGemms();

  /// The own kernels for `problem`: none or one.
  std::vector<Algorithm> candidates(const GemmProblem& problem) const;
  /// Whether `algorithm`, an own one, may be run for `problem`: of a file, it may come from
  /// elsewhere.
  bool usable(const GemmProblem& problem, const Algorithm& algorithm) const;
  /// Whether there is one for `problem` that reads the rows of A in `parts` parts, as they come.
  bool runs_in_parts(const GemmProblem& problem, int parts) const;
  /// Enqueues it on context.stream, with kGemmWorkspace bytes of the context's workspace. Unlike
  /// cuBLASLt's epilogues it adds to operands.vector what is to be summed.
  void run(const GemmProblem& problem, const Operands& operands, const Context& context) const;

 private:
  int sms_ = 0;                         ///< 0 on GPUs that the kernels do not run on
  std::shared_ptr<unsigned> counters_;  ///< of tickets and turns: one stream at a time
};

}  // namespace trireme::kernels::cuda
