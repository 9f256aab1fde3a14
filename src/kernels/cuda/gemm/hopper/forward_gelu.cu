#include "kernels/cuda/gemm/hopper/gemm.cuh"

namespace trireme::kernels::cuda {

void launch_forward_gelu(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::gelu>(gemm, nullptr, context);
}

void launch_forward_exact_gelu(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::exact_gelu>(gemm, nullptr, context);
}

void launch_forward_gated(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::gated>(gemm, nullptr, context);
}

}  // namespace trireme::kernels::cuda
