#include "kernels/cuda/gemm/hopper/gemm.cuh"

namespace trireme::kernels::cuda {

void launch_forward(const HopperGemm& gemm, const Context& context) {
  launch_gemm<TileEpilogue::store>(gemm, nullptr, context);
}

}  // namespace trireme::kernels::cuda
