#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/gemm/hopper/gemm.cuh"

namespace trireme::kernels::cuda {
namespace {

/// Rows of partial sums: each consumer's tile leaves one.
std::int64_t partial_rows(const GemmProblem& problem) {
  constexpr int kRows = ChosenTile<TileEpilogue::gelu_gradient>::kRows;
  return (problem.m + kRows - 1) / kRows;
}

template <TileEpilogue kEpilogue>
void launch(const HopperGemm& gemm, const Context& context) {
  auto* const partials = reinterpret_cast<float*>(context.workspace);
  launch_gemm<kEpilogue>(gemm, partials, context);
  add_partial_columns(partials, partial_rows(gemm.problem),
                      {.width = gemm.problem.n, .vectors = {gemm.operands.vector}}, context);
}

}  // namespace

std::size_t gelu_gradient_partials(const GemmProblem& problem) {
  return sizeof(float) * static_cast<std::size_t>(partial_rows(problem) * problem.n);
}

void launch_gelu_gradient(const HopperGemm& gemm, const Context& context) {
  launch<TileEpilogue::gelu_gradient>(gemm, context);
}

void launch_exact_gelu_gradient(const HopperGemm& gemm, const Context& context) {
  launch<TileEpilogue::exact_gelu_gradient>(gemm, context);
}

void launch_gated_gradient(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::gated_gradient>(gemm, nullptr, context);
}

}  // namespace trireme::kernels::cuda
