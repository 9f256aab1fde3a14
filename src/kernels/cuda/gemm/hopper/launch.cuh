// Launches a GEMM kernel for Hopper.
#pragma once

#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/gemm/hopper/gemm.cuh"
#include "kernels/cuda/gemm/hopper/launchers.hpp"
#include "kernels/cuda/hopper/tensor_map.hpp"

namespace trireme::kernels::cuda {

/// The tile that is the fastest on H200 for each of these epilogues.
template <TileEpilogue kEpilogue>
using ChosenTile = GemmTile<2, 192, 2, kEpilogue>;

/// The map of a matrix [rows, columns] of `dtype`, in boxes of `box` rows of a panel.
inline CUtensorMap matrix_map(DType dtype, const void* data, std::int64_t rows,
                              std::int64_t columns, int box) {
  return make_tensor_map<2>(dtype, const_cast<void*>(data),
                            {{{.size = columns, .stride = 1, .box = kPanelColumns},
                              {.size = rows, .stride = columns, .box = box}}});
}

/// Launches the kernel with `kEpilogue` for the operands' type. `vector`: see GemmParameters.
template <TileEpilogue kEpilogue>
void launch_gemm(const HopperGemm& gemm, float* vector, const Context& context) {
  using Tile = ChosenTile<kEpilogue>;
  const std::int64_t m = gemm.product.m, n = gemm.product.n, k = gemm.product.k;
  const DType dtype = gemm.product.operands;
  const Operands& operands = gemm.operands;
  const int clusters = gemm.multiprocessors / Tile::kCluster;
  const GemmSchedule schedule = gemm_schedule<Tile>(m, n, k, clusters);
  GemmMaps maps{};
  maps.a = Tile::kTransposedA ? matrix_map(dtype, operands.a, k, m, Tile::kDepth)
                              : matrix_map(dtype, operands.a, m, k, Tile::kRows);
  maps.b = Tile::kTransposedB
               ? matrix_map(dtype, operands.b, k, n, Tile::kDepth / Tile::kCluster)
               : matrix_map(dtype, operands.b, n, k, Tile::kColumns / Tile::kCluster);
  if constexpr (!accumulates(kEpilogue)) {
    constexpr int kAuxRows = kEpilogue == TileEpilogue::gelu_gradient ? 64 : 16;
    maps.c = matrix_map(dtype, operands.c, m, n, 16);
    if (operands.aux) maps.aux = matrix_map(dtype, operands.aux, m, n, kAuxRows);
  }
  const GemmParameters parameters{.m = static_cast<int>(m),
                                  .n = static_cast<int>(n),
                                  .schedule = schedule,
                                  .bias = operands.bias,
                                  .sum = static_cast<float*>(operands.c),
                                  .vector = vector,
                                  .turns = gemm.turns,
                                  .tickets = gemm.tickets};
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {Tile::kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  const unsigned blocks = Tile::kCluster * std::min(clusters, schedule.units());
  const cudaLaunchConfig_t config{.gridDim = blocks,
                                  .blockDim = Tile::kThreads,
                                  .dynamicSmemBytes = Tile::kBytes,
                                  .stream = context.stream,
                                  .attrs = attributes,
                                  .numAttrs = 2};
  dispatch_half(dtype, [&](auto zero) {
    const auto kernel = gemm_kernel<decltype(zero), Tile>;
    TRIREME_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kBytes));
    TRIREME_CUDA(cudaLaunchKernelEx(&config, kernel, maps, parameters));
  });
}

}  // namespace trireme::kernels::cuda
