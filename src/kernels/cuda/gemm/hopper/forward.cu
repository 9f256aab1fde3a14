#include "kernels/cuda/gemm/hopper/gemm.cuh"

namespace trireme::kernels::cuda {

void launch_forward(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::store>(gemm, nullptr, context);
}

bool has_row_parts(const GemmProblem& problem, int parts) {
  using Tile = ChosenTile<TileEpilogue::store>;
  static_assert(Tile::kCluster * Tile::kRows == kPartRowMultiple);
  return has_row_parts<Tile>(problem.m, parts);
}

}  // namespace trireme::kernels::cuda
