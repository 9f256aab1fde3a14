#include "kernels/cuda/gemm/hopper/gemm.cuh"

namespace trireme::kernels::cuda {

void launch_weight_gradient(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::accumulate>(gemm, nullptr, context);
}

void launch_weight_bias_gradient(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::accumulate_row_sums>(gemm, gemm.operands.vector, context);
}

std::size_t weight_gradient_turns(const GemmProblem& problem) {
  using Tile = ChosenTile<TileEpilogue::accumulate>;
  const GemmSchedule schedule = gemm_schedule<Tile>(problem.m, problem.n, problem.k, 1);
  return static_cast<std::size_t>(schedule.tiles()) * Tile::kCluster;
}

}  // namespace trireme::kernels::cuda
