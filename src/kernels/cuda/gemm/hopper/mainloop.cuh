// What the warps of a GEMM kernel for Hopper have in common: shared memory, the loads of operands,
// and the multiplication of one unit's tile.
#pragma once

#include "kernels/cuda/gemm/hopper/tiles.hpp"
#include "kernels/cuda/hopper/cluster.cuh"
#include "kernels/cuda/hopper/copies.cuh"
#include "kernels/cuda/hopper/products.cuh"

namespace trireme::kernels::cuda {

/// The matrices as TMA sees them.
struct GemmMaps {
  CUtensorMap a, b;
  CUtensorMap c, aux;  ///< in boxes of 16 rows, or of 64 if they are loaded
};

struct GemmParameters {
  int m, n;
  GemmSchedule schedule;
  const void* bias;  ///< [n] of the operands' type, or null
  float* sum;        ///< C [m, n] of accumulating kernels
  /// gelu_gradient: column sums of each kOwnRows rows of C [.., n]; accumulate_row_sums: [m].
  float* vector;
  unsigned* turns;  ///< for each consumer's tile the number of parts of k added so far
};

/// A block's shared memory. `full` barriers end a phase when a stage has been copied, `empty` ones
/// when the consumers of all blocks of the cluster are done with it.
template <typename Tile>
struct GemmMemory {
  unsigned char* base = aligned_shared_memory();

  __device__ unsigned char* a(int stage) const { return base + stage * Tile::kStageBytes; }
  __device__ unsigned char* b(int stage) const { return a(stage) + Tile::kBytesA; }
  __device__ unsigned char* buffer(int consumer, int i) const {
    return a(Tile::kStages) + (consumer * Tile::kBuffers + i) * Tile::kBufferBytes;
  }
  /// An operand B of 64 x 8 ones.
  __device__ unsigned char* ones() const { return buffer(Tile::kConsumers, 0); }
  /// Column sums of four warps of a consumer, [4, 64].
  __device__ float* sums(int consumer) const {
    return reinterpret_cast<float*>(ones() + Tile::kOnesBytes) + consumer * 256;
  }
  __device__ Barrier* full(int stage) const { return barrier(stage); }
  __device__ Barrier* empty(int stage) const { return barrier(Tile::kStages + stage); }
  /// A buffer of `aux` has been copied; what the four warps put in its place has been stored.
  __device__ Barrier* aux_full(int consumer, int i) const {
    return barrier(2 * Tile::kStages + consumer * Tile::kBuffers + i);
  }
  __device__ Barrier* aux_empty(int consumer, int i) const {
    return aux_full(Tile::kConsumers + consumer, i);
  }

  __device__ void make_barriers() const {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      make_barrier(full(stage), 1);
      make_barrier(empty(stage), 4 * (Tile::kPingPong ? 1 : Tile::kConsumers) * Tile::kCluster);
    }
    for (int i = 0; i < Tile::kConsumers * Tile::kBuffers; ++i) {
      make_barrier(aux_full(0, i), 1);
      make_barrier(aux_empty(0, i), 4);
    }
    publish_barriers();
  }

 private:
  __device__ Barrier* barrier(int i) const {
    static_assert((Tile::kStages + Tile::kConsumers * Tile::kBuffers) * 2 * sizeof(Barrier) <= 512);
    return reinterpret_cast<Barrier*>(ones() + Tile::kOnesBytes + Tile::kSumBytes) + i;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The place in the ring of the step of index `step` among all that a block takes.
template <int kStages>
__device__ __forceinline__ RingPlace<kStages> ring_place(unsigned step) {
  return {static_cast<int>(step % kStages), step / kStages & 1};
}

/// Which cluster of how many a block belongs to, and its index there.
struct Position {
  int cluster, clusters, rank;
};

/// Loads this block's part of the operands of its cluster's units, by one thread.
template <typename Tile>
__device__ __forceinline__ void load_operands(const GemmMemory<Tile>& memory, const GemmMaps& maps,
                                              const GemmSchedule& schedule,
                                              const Position& position) {
  constexpr int kCluster = Tile::kCluster;
  RingPlace<Tile::kStages> place;
  const int rank = position.rank;
  for (int index = position.cluster; index < schedule.units(); index += position.clusters) {
    const GemmUnit unit = schedule.unit(index);
    const int row = (unit.row * kCluster + rank) * Tile::kRows;
    const int column = unit.column * Tile::kColumns;
    for (int step = unit.first_step; step < unit.end_step; ++step) {
      const int k = step * Tile::kDepth, stage = place.stage;
      Barrier* const full = memory.full(stage);
      wait(memory.empty(stage), place.parity ^ 1);
      arrive_expecting(full, Tile::kStageBytes);
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
        load_b(rank * kShare * kPanelRowBytes, k, column + rank * kShare);
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
      hold(tile[block]);
      if constexpr (kRowSums) hold(row_sums[block]);
    }
  }

  // Enqueues the wgmmas of one stage.
  template <bool kFirst, bool kSums>
  __device__ __forceinline__ void multiply(const GemmMemory<Tile>& memory, int stage,
                                           int first_row) {
    constexpr int kPanelBytes = 64 * kPanelRowBytes;
    const std::uint64_t a = matrix_descriptor(
        shared_address(memory.a(stage)) + first_row * kPanelRowBytes, kPanelBytes);
    const std::uint64_t b = matrix_descriptor(shared_address(memory.b(stage)), kPanelBytes);
    open_products();
#pragma unroll
    for (int k = 0; k < Tile::kDepth / 16; ++k)
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block) {
        const int in_a = block * kPanelBytes + (Tile::kTransposedA ? row_step(k) : 32 * k);
        start_product<T, Tile::kTransposedA, Tile::kTransposedB>(
            tile[block], advanced(a, in_a), advanced(b, Tile::kTransposedB ? row_step(k) : 32 * k),
            !kFirst || k > 0);
        if constexpr (kSums)
          start_product<T, Tile::kTransposedA, 0>(
              row_sums[block], advanced(a, in_a),
              matrix_descriptor(shared_address(memory.ones()), 0), !kFirst || k > 0);
      }
    close_products();
  }

  /// op(A) op(B) over `steps` steps, the first of which is `first_step` of all the block's;
  /// `first_row`: of the stage's rows, this consumer's first. Calls `issued()` when all wgmmas are.
  template <bool kSums, typename Issued>
  __device__ __forceinline__ void compute(const GemmMemory<Tile>& memory, unsigned first_step,
                                          int steps, int first_row, const Issued& issued) {
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
    multiply<true, kSums>(memory, place.stage, first_row);
    for (int step = 1; step < steps; ++step) {
      const int last = place.stage;
      place.advance();
      wait(memory.full(place.stage), place.parity);
      multiply<false, kSums>(memory, place.stage, first_row);
      wait_products<1>();
      release(last);
    }
    issued();
    wait_products<0>();
    fence();
    release(place.stage);
  }
};

#endif

}  // namespace trireme::kernels::cuda
