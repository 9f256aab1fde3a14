// Trireme's own GEMM kernels for compute capability 9.0, as candidates next to cuBLASLt's.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/gemm/matmul.hpp"
#include "kernels/cuda/gemm/plans.hpp"

namespace trireme::kernels::cuda {

/// Whether `algorithm` names an own kernel, of this version or another.
bool is_own(const Algorithm& algorithm);

/// The own kernels on the current GPU. They have what cuBLASLt lacks, or is slow at, on Hopper: the
/// forward GEMM of a linear layer, with bias, or with bias and GELU; its input gradient times
/// GELU's, with the column sums; its weight gradient, with the bias gradient. In bf16 and fp16,
/// fp32 accumulation, matrices aligned to 16 bytes with rows of a multiple of 16 bytes. The same
/// operands give the same bits each time. All calls go to one stream.
class HopperGemms {
 public:
  HopperGemms();

  /// The own kernels for `product`: none or one.
  std::vector<Algorithm> candidates(const Product& product) const;
  /// Whether `algorithm`, an own one, may be run for `product`: of a file, it may come from
  /// elsewhere.
  bool usable(const Product& product, const Algorithm& algorithm) const;
  /// Enqueues it on context.stream, with kGemmWorkspace bytes of the context's workspace. Unlike
  /// cuBLASLt's epilogues it adds to operands.vector what is to be summed.
  void run(const Product& product, const Operands& operands, const Context& context) const;

 private:
  int multiprocessors_ = 0;             ///< 0 on GPUs that the kernels do not run on
  std::shared_ptr<unsigned> counters_;  ///< of tickets and turns: one stream at a time
};

}  // namespace trireme::kernels::cuda
