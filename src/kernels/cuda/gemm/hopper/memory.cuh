// The parameters and the shared memory of the GEMM kernels for Hopper.
#pragma once

#include "kernels/cuda/gemm/hopper/tiles.hpp"
#include "kernels/cuda/hopper/cluster.cuh"
#include "kernels/cuda/hopper/copies.cuh"

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
  /// gelu_gradient: column sums of each kRows rows of C [.., n]; accumulate_row_sums: [m].
  float* vector;
  unsigned* turns;    ///< for each tile the number of parts of k added so far
  unsigned* tickets;  ///< drawn so far by all clusters; zero again after the last
};

/// A block's shared memory. `full` barriers end a phase when what they are named after has been
/// written, `empty` ones when all of its readers are done with it.
template <typename Tile>
struct GemmMemory {
  /// Tickets that may be drawn ahead.
  static constexpr int kTickets = 4;
  /// Threads of a cluster that read each ticket: of each block, the one that loads operands, those
  /// that load aux, and one for each warp of consumers.
  static constexpr int kTicketReaders =
      Tile::kCluster *
      (1 + (Tile::kEpilogue == TileEpilogue::gelu_gradient ? Tile::kConsumers : 0) +
       4 * Tile::kConsumers);

  unsigned char* base = aligned_shared_memory();

  // ---- operands, written by TMA, read by the consumers of all blocks of the cluster
  __device__ unsigned char* a(int stage) const { return base + stage * Tile::kStageBytes; }
  __device__ unsigned char* b(int stage) const { return a(stage) + Tile::kBytesA; }
  __device__ Barrier* full(int stage) const { return barrier(stage); }
  __device__ Barrier* empty(int stage) const { return barrier(Tile::kStages + stage); }

  // ---- the epilogue
  __device__ unsigned char* buffer(int consumer, int i) const {
    return a(Tile::kStages) + (consumer * Tile::kBuffers + i) * Tile::kBufferBytes;
  }
  /// Of a buffer that aux is loaded to; it is empty when four warps have stored what they put
  /// there.
  __device__ Barrier* aux_full(int consumer, int i) const {
    return barrier(kAuxAt + consumer * Tile::kBuffers + i);
  }
  __device__ Barrier* aux_empty(int consumer, int i) const {
    return aux_full(Tile::kConsumers + consumer, i);
  }
  /// An operand B of 64 x 8 ones.
  __device__ unsigned char* ones() const { return buffer(Tile::kConsumers, 0); }
  /// Column sums of four warps of a consumer, [4, 64].
  __device__ float* sums(int consumer) const {
    return reinterpret_cast<float*>(ones() + Tile::kOnesBytes) + consumer * 256;
  }

  // ---- the order of work
  /// The other consumer has enqueued its wgmmas: it is this one's turn.
  __device__ Barrier* turn(int consumer) const { return barrier(2 * Tile::kStages + consumer); }
  __device__ Barrier* ticket_full(int i) const { return barrier(kTicketsAt + i); }
  __device__ Barrier* ticket_empty(int i) const { return barrier(kTicketsAt + kTickets + i); }
  __device__ int* ticket(int i) const { return reinterpret_cast<int*>(barrier(kBarriers)) + i; }

  __device__ void make_barriers() const {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      make_barrier(full(stage), 1);
      make_barrier(empty(stage), 4 * Tile::kCluster);
    }
    for (int i = 0; i < Tile::kConsumers; ++i) make_barrier(turn(i), 4);
    for (int i = 0; i < kTickets; ++i) {
      make_barrier(ticket_full(i), 1);
      make_barrier(ticket_empty(i), kTicketReaders);
    }
    for (int i = 0; i < Tile::kConsumers * Tile::kBuffers; ++i) {
      make_barrier(aux_full(0, i), 1);
      make_barrier(aux_empty(0, i), 4);
    }
    publish_barriers();
  }

 private:
  static constexpr int kTicketsAt = 2 * Tile::kStages + Tile::kConsumers;
  static constexpr int kAuxAt = kTicketsAt + 2 * kTickets;
  static constexpr int kBarriers = kAuxAt + 2 * Tile::kConsumers * Tile::kBuffers;
  static_assert(kBarriers * sizeof(Barrier) + kTickets * sizeof(int) <= Tile::kBarrierBytes);

  __device__ Barrier* barrier(int i) const {
    return reinterpret_cast<Barrier*>(ones() + Tile::kOnesBytes + Tile::kSumBytes) + i;
  }
};

}  // namespace trireme::kernels::cuda
