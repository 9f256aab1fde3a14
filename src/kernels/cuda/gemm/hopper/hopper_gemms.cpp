#include "kernels/cuda/gemm/hopper/hopper_gemms.hpp"

#include <cuda_runtime_api.h>

#include <limits>

#include "core/cuda/check.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

// In the first word of an algorithm: that it is an own one, and in its last byte the version of the
// kernels. Another version may give other bits, and is timed again.
constexpr std::uint64_t kOwn = 0x54726972656D6500;
constexpr std::uint64_t kVersion = 1;
constexpr Algorithm kOwnAlgorithm = {kOwn | kVersion};

/// Turns that a kernel may take: with the counter of tickets before them, 64 KiB.
constexpr std::size_t kTurns = (std::size_t{1} << 14) - 1;
constexpr std::size_t kCounterBytes = (1 + kTurns) * sizeof(unsigned);

using Launcher = void (*)(const HopperGemm&, const Context&);

/// The launcher for the transposes and the epilogue of `problem`; null for those that have none.
Launcher launcher_of(const GemmProblem& problem) {
  const bool forward = !problem.transpose_a && problem.transpose_b && !problem.adds &&
                       problem.result == problem.operands;
  const bool input_gradient = !problem.transpose_a && !problem.transpose_b && !problem.adds &&
                              problem.result == problem.operands;
  const bool weight_gradient =
      problem.transpose_a && !problem.transpose_b && problem.adds && problem.result == DType::f32;
  switch (problem.epilogue) {
    case Epilogue::none:
      return forward ? launch_forward : weight_gradient ? launch_weight_gradient : nullptr;
    case Epilogue::gelu:
      return forward ? launch_forward_gelu : nullptr;
    case Epilogue::gelu_gradient:
      return input_gradient ? launch_gelu_gradient : nullptr;
    case Epilogue::exact_gelu:
      return forward ? launch_forward_exact_gelu : nullptr;
    case Epilogue::exact_gelu_gradient:
      return input_gradient ? launch_exact_gelu_gradient : nullptr;
    case Epilogue::gated:
      return forward && !problem.bias ? launch_forward_gated : nullptr;
    case Epilogue::gated_gradient:
      return input_gradient ? launch_gated_gradient : nullptr;
    case Epilogue::bias_gradient:
      return weight_gradient ? launch_weight_bias_gradient : nullptr;
  }
  return nullptr;
}

bool fits(const GemmProblem& problem) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  if (problem.operands != DType::bf16 && problem.operands != DType::f16) return false;
  for (const std::uint32_t alignment :
       {problem.alignment_a, problem.alignment_b, problem.alignment_c})
    if (alignment < kLargestAlignment) return false;
  // Rows of all matrices: [m, k] or [k, m], [n, k] or [k, n], [m, n].
  for (const std::int64_t columns : {problem.transpose_a ? problem.m : problem.k,
                                     problem.transpose_b ? problem.k : problem.n, problem.n})
    if (columns % 8 != 0) return false;
  // Halves of C's rows begin at a multiple of 16 bytes, too.
  if (problem.epilogue == Epilogue::gated && problem.n % 16 != 0) return false;
  for (const std::int64_t size : {problem.m, problem.n, problem.k})
    if (size <= 0 || size > kMax) return false;
  return true;
}

}  // namespace

bool is_own(const Algorithm& algorithm) { return (algorithm[0] & ~std::uint64_t{0xFF}) == kOwn; }

HopperGemms::HopperGemms() {
  int device = 0;
  cudaDeviceProp gpu;
  TRIREME_CUDA(cudaGetDevice(&device));
  TRIREME_CUDA(cudaGetDeviceProperties(&gpu, device));
  if (gpu.major != 9 || gpu.minor != 0) return;
  void* counters = nullptr;
  TRIREME_CUDA(cudaMalloc(&counters, kCounterBytes));
  counters_ = {static_cast<unsigned*>(counters), [](unsigned* memory) { cudaFree(memory); }};
  TRIREME_CUDA(cudaMemset(counters, 0, kCounterBytes));
  TRIREME_CUDA(cudaStreamSynchronize(nullptr));  // kernels run on other streams, which do not wait
  sms_ = gpu.multiProcessorCount;
}

std::vector<Algorithm> HopperGemms::candidates(const GemmProblem& problem) const {
  if (usable(problem, kOwnAlgorithm)) return {kOwnAlgorithm};
  return {};
}

bool HopperGemms::usable(const GemmProblem& problem, const Algorithm& algorithm) const {
  return sms_ > 1 && algorithm == kOwnAlgorithm && fits(problem) &&
         launcher_of(problem) != nullptr &&
         (!problem.adds || weight_gradient_turns(problem) <= kTurns) &&
         (!is_gelu_gradient(problem.epilogue) || gelu_gradient_partials(problem) <= kGemmWorkspace);
}

bool HopperGemms::runs_in_parts(const GemmProblem& problem, int parts) const {
  return !problem.transpose_a && usable(problem, kOwnAlgorithm) && has_row_parts(problem, parts);
}

void HopperGemms::run(const GemmProblem& problem, const Operands& operands,
                      const Context& context) const {
  launcher_of(problem)({.problem = problem,
                        .operands = operands,
                        .turns = counters_.get() + 1,
                        .tickets = counters_.get(),
                        .sms = sms_},
                       context);
}

}  // namespace trireme::kernels::cuda
