// The main loop of the GEMM algorithms for Hopper: the loads of operands, and the multiplication of
// one unit's tile.
#pragma once

#include "kernels/cuda/gemm/hopper/memory.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"

namespace trireme::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The place in the ring of the step of index `step` among all that a block takes.
template <int kStages>
__device__ __forceinline__ RingPlace<kStages> ring_place(unsigned step) {
  return {static_cast<int>(step % kStages), step / kStages & 1};
}

/// Loads this block's part of the operands of its cluster's units, by one thread.
template <typename Tile>
__device__ __forceinline__ void load_operands(const GemmMemory<Tile>& memory, const GemmMaps& maps,
                                              const GemmParameters& p, const Position& position) {
  constexpr int kCluster = Tile::kCluster;
  const GemmSchedule& schedule = p.schedule;
  const int rank = position.rank;
  RingPlace<Tile::kStages> place;
  TicketReader<Tile> tickets(memory);
  int drawn = rank == 0 ? first_ticket(p, position) : 0;
  unsigned seen = 0;
  while (true) {
    if (rank == 0) tickets.publish(drawn);
    tickets.expect();
    const int index = tickets.next();
    if (index >= schedule.units()) break;
    const GemmUnit unit = schedule.unit(index);
    const int row = (unit.row * kCluster + rank) * Tile::kRows;
    const int column = unit.column * Tile::kColumns;
    if (!Tile::kTransposedA && p.arrivals.flags) await_rows(p, unit.row, seen);
    for (int step = unit.first_step; step < unit.end_step; ++step) {
      const int k = step * Tile::kDepth, stage = place.stage;
      // No sooner than the ring is nearly filled: clusters shall draw as they get free.
      if (step + 1 == unit.end_step && rank == 0) drawn = draw_ticket(p, position.clusters);
      Barrier* const full = memory.full(stage);
      wait(memory.empty(stage), place.parity ^ 1);
      arrive_expect_tx(full, Tile::kStageBytes);
      // ---- A: all rows, or panels of 64 rows each
      if constexpr (Tile::kTransposedA) {
#pragma unroll
        for (int panel = 0; panel < Tile::kRows / 64; ++panel)
          tma_load(memory.a(stage) + panel * 64 * kPanelRowBytes, maps.a, full, row + panel * 64,
                   k);
      } else {
        tma_load(memory.a(stage), maps.a, full, k, row);
      }
      // ---- B: a share of the columns, or of each panel's rows, goes to all blocks
      const auto load_b = [&](int at, int x, int y) {
        if constexpr (kCluster > 1)
          tma_load_multicast(memory.b(stage) + at, maps.b, full, x, y, (1u << kCluster) - 1);
        else
          tma_load(memory.b(stage) + at, maps.b, full, x, y);
      };
      if constexpr (Tile::kTransposedB) {
        constexpr int kShare = Tile::kDepth / kCluster;
#pragma unroll
        for (int panel = 0; panel < Tile::kPanels; ++panel)
          load_b((panel * 64 + rank * kShare) * kPanelRowBytes, column + panel * 64,
                 k + rank * kShare);
      } else {
        constexpr int kShare = Tile::kColumns / kCluster;
        // gated: one block has the rows of gate, the other those of up. Rows of gate beyond its
        // last are up's; what they make is not stored.
        const int row_of_b = Tile::kEpilogue == TileEpilogue::gated
                                 ? column / kCluster + rank * (p.n / kCluster)
                                 : column + rank * kShare;
        load_b(rank * kShare * kPanelRowBytes, k, row_of_b);
      }
      place.advance();
    }
  }
}

/// A consumer's tile of a unit.
template <typename T, typename Tile>
struct GemmAccumulators {
  static constexpr bool kRowSums = Tile::kEpilogue == TileEpilogue::accumulate_row_sums;
  float tile[Tile::kBlocks][Tile::kColumns / 2];
  float row_sums[Tile::kBlocks][4];  ///< of op(A): eight equal columns of 64 rows each

  __device__ __forceinline__ void fence() {
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
      warpgroup_fence_operand(tile[block]);
      if constexpr (kRowSums) warpgroup_fence_operand(row_sums[block]);
    }
  }

  // Enqueues the wgmmas of one stage.
  template <bool kFirst, bool kSums>
  __device__ __forceinline__ void multiply(const GemmMemory<Tile>& memory, int stage) {
    constexpr int kPanelBytes = 64 * kPanelRowBytes;
    const std::uint64_t a = matrix_descriptor(shared_address(memory.a(stage)), kPanelBytes);
    const std::uint64_t b = matrix_descriptor(shared_address(memory.b(stage)), kPanelBytes);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < Tile::kDepth / 16; ++k)
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block) {
        const int in_a = block * kPanelBytes + (Tile::kTransposedA ? row_step(k) : 32 * k);
        wgmma<T, Tile::kTransposedA, Tile::kTransposedB>(
            tile[block], advanced(a, in_a), advanced(b, Tile::kTransposedB ? row_step(k) : 32 * k),
            !kFirst || k > 0);
        if constexpr (kSums)
          wgmma<T, Tile::kTransposedA, 0>(row_sums[block], advanced(a, in_a),
                                          matrix_descriptor(shared_address(memory.ones()), 0),
                                          !kFirst || k > 0);
      }
    warpgroup_commit_batch();
  }

  /// op(A) op(B) over `steps` steps, the first of which is `first_step` of all the block's. Calls
  /// `issued()` when all wgmmas are.
  template <bool kSums, typename Issued>
  __device__ __forceinline__ void compute(const GemmMemory<Tile>& memory, unsigned first_step,
                                          int steps, const Issued& issued) {
    const int lane = threadIdx.x % 32;
    const auto release = [&](int stage) {
      if constexpr (Tile::kCluster > 1) {
        if (lane < Tile::kCluster) arrive_at(memory.empty(stage), lane);
      } else {
        if (lane == 0) arrive(memory.empty(stage));
      }
    };
    RingPlace<Tile::kStages> place = ring_place<Tile::kStages>(first_step);
    wait(memory.full(place.stage), place.parity);
    fence();
    multiply<true, kSums>(memory, place.stage);
    for (int step = 1; step < steps; ++step) {
      const int last = place.stage;
      place.advance();
      wait(memory.full(place.stage), place.parity);
      multiply<false, kSums>(memory, place.stage);
      warpgroup_wait<1>();
      release(last);
    }
    issued();
    warpgroup_wait<0>();
    fence();
    release(place.stage);
  }
};

#endif

}  // namespace trireme::kernels::cuda
