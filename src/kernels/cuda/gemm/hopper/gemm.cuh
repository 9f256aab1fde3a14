// GEMMs for compute capability 9.0: persistent, warp-specialised, wgmma fed by TMA. A producer
// thread fills a ring of stages; two consumer warpgroups multiply and run their epilogues in turn.
// Source of the structure: CUTLASS 3, "KernelTmaWarpSpecializedPingpong".
// Launches a GEMM kernel for Hopper.
#pragma once

#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/gemm/hopper/epilogues.cuh"
#include "kernels/cuda/gemm/hopper/hopper_gemms.hpp"
#include "kernels/cuda/hopper/tensor_map.hpp"

namespace trireme::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The units of one consumer of a block: every second one.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply_units(const GemmMemory<Tile>& memory, const GemmMaps& maps,
                                               const GemmParameters& p, int consumer, int rank) {
  using Epilogue = GemmEpilogue<T, Tile>;
  Epilogue epilogue(memory, maps, p, consumer);
  GemmAccumulators<T, Tile> accumulators;
  TicketReader<Tile> tickets(memory);
  unsigned steps_before = 0;
  for (int turn = 0;; ++turn) {
    const int index = tickets.next_of_warp();
    if (index >= p.schedule.units()) break;
    const GemmUnit unit = p.schedule.unit(index);
    const int steps = unit.end_step - unit.first_step;
    const unsigned first_step = steps_before;
    steps_before += steps;
    if (turn % Tile::kConsumers != consumer) continue;
    const TilePlace place = place_of<Tile>(unit, rank);
    // A full barrier tells a phase from the next, not from the one after that: a consumer may only
    // wait for its first step when the other has seen the step before.
    if (turn > 0) wait(memory.turn(consumer), (turn - 1) / Tile::kConsumers & 1);
    const auto issued = [&] {
      if (epilogue.lane == 0) arrive(memory.turn(consumer ^ 1));
    };
    if (Epilogue::Accumulators::kRowSums && unit.column == 0)
      accumulators.template compute<Epilogue::Accumulators::kRowSums>(memory, first_step, steps,
                                                                      issued);
    else
      accumulators.template compute<false>(memory, first_step, steps, issued);
    if constexpr (accumulates(Tile::kEpilogue))
      epilogue.accumulate(accumulators, place, unit);
    else if constexpr (is_gelu_gradient(Tile::kEpilogue))
      epilogue.gelu_gradient(accumulators, place);
    else if constexpr (reads_aux(Tile::kEpilogue))
      epilogue.gated_gradient(accumulators, place);
    else if constexpr (Tile::kEpilogue == TileEpilogue::gated)
      epilogue.gated(accumulators, place);
    else
      epilogue.store(accumulators, place);
  }
  if (epilogue.lane == 0) wait_stores_read();
}

#endif

/// One cluster for each kCluster SMs.
template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmMaps maps, const __grid_constant__ GemmParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kCluster = Tile::kCluster;
  const GemmMemory<Tile> memory;
  const Position position{.cluster = static_cast<int>(blockIdx.x / kCluster),
                          .clusters = static_cast<int>(gridDim.x / kCluster),
                          .rank = kCluster > 1 ? cluster_rank() : 0};
  if (threadIdx.x == 0) {
    prefetch_map(maps.a);
    prefetch_map(maps.b);
    memory.make_barriers();
  }
  if constexpr (Tile::kOnesBytes > 0) {
    for (unsigned i = threadIdx.x; i < Tile::kOnesBytes / sizeof(T); i += Tile::kThreads)
      reinterpret_cast<T*>(memory.ones())[i] = from_float<T>(1.0f);
    publish_shared();
  }
  if constexpr (kCluster > 1)
    cluster_sync();
  else
    __syncthreads();
  wait_for_previous_kernel();

  // The same in all lanes of a warp, which the compiler would not know otherwise.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) load_operands<Tile>(memory, maps, p, position);
      if constexpr (reads_aux(Tile::kEpilogue))
        if (warp >= 2) load_aux<Tile>(memory, maps, p.schedule, position.rank, warp - 2);
    }
    __syncwarp();
    // The other blocks of the cluster may still be arriving at this one's barriers.
    if constexpr (kCluster > 1) cluster_sync();
  } else {
    setmaxnreg_inc<232>();
    multiply_units<T, Tile>(memory, maps, p, warpgroup - 1, position.rank);
    __syncwarp();
    if constexpr (kCluster > 1) cluster_sync();
  }
#endif
}

/// The tile that is the fastest on H200 for each of these epilogues.
template <TileEpilogue kEpilogue>
using ChosenTile = GemmTile<2, 192, 2, kEpilogue>;

/// The map of a matrix [rows, columns] of `dtype`, in boxes of `box` rows of a panel, or of
/// `box_columns`. `stride`: elements from one row to the next, if not `columns`.
inline CUtensorMap matrix_map(DType dtype, const void* data, std::int64_t rows,
                              std::int64_t columns, int box, std::int64_t stride = 0,
                              int box_columns = kPanelColumns) {
  return make_tensor_map<2>(
      dtype, const_cast<void*>(data),
      {{{.size = columns, .stride = 1, .box = box_columns},
        {.size = rows, .stride = stride > 0 ? stride : columns, .box = box}}});
}

/// The maps of the halves of a matrix [rows, 2 columns] of a 16-bit type.
inline void map_halves(CUtensorMap& first, CUtensorMap& second, DType dtype, void* data,
                       std::int64_t rows, std::int64_t columns, int box,
                       int box_columns = kPanelColumns) {
  first = matrix_map(dtype, data, rows, columns, box, 2 * columns, box_columns);
  second = matrix_map(dtype, static_cast<std::byte*>(data) + 2 * columns, rows, columns, box,
                      2 * columns, box_columns);
}

/// Launches the kernel with `kEpilogue` for the operands' type. `vector`: see GemmParameters.
template <TileEpilogue kEpilogue>
void launch_gemm(const HopperGemm& gemm, float* vector, const Context& context) {
  using Tile = ChosenTile<kEpilogue>;
  const std::int64_t m = gemm.problem.m, n = gemm.problem.n, k = gemm.problem.k;
  const DType dtype = gemm.problem.operands;
  const Operands& operands = gemm.operands;
  const int clusters = gemm.sms / Tile::kCluster;
  const PartArrivals& arrivals = operands.arrivals;
  GemmSchedule schedule = gemm_schedule<Tile>(m, n, k, clusters);
  if (arrivals) schedule = in_row_parts(schedule, arrivals.parts, arrivals.own);
  GemmMaps maps{};
  maps.a = Tile::kTransposedA ? matrix_map(dtype, operands.a, k, m, Tile::kDepth)
                              : matrix_map(dtype, operands.a, m, k, Tile::kRows);
  maps.b = Tile::kTransposedB
               ? matrix_map(dtype, operands.b, k, n, Tile::kDepth / Tile::kCluster)
               : matrix_map(dtype, operands.b, n, k, Tile::kColumns / Tile::kCluster);
  if constexpr (kEpilogue == TileEpilogue::gated_gradient) {
    map_halves(maps.c, maps.second_c, dtype, operands.c, m, n, 16);
    map_halves(maps.aux, maps.second_aux, dtype, operands.aux, m, n, 64);
  } else if constexpr (kEpilogue == TileEpilogue::gated) {
    map_halves(maps.c, maps.second_c, dtype, operands.c, m, n / 2, 16, kHalfPanelColumns);
    maps.aux = matrix_map(dtype, operands.aux, m, n / 2, 16, 0, kHalfPanelColumns);
  } else if constexpr (!accumulates(kEpilogue)) {
    constexpr int kAuxRows = is_gelu_gradient(kEpilogue) ? 64 : 16;
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
                                  .tickets = gemm.tickets,
                                  .arrivals = arrivals,
                                  .part_rows = schedule.rows / arrivals.parts};
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
