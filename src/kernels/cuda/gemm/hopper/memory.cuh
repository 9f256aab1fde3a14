// The parameters and the shared memory of the GEMM algorithms for Hopper.
// Which units a cluster computes: it draws a ticket, the index of a unit, whenever it gets free. So
// units are begun in their order, whichever clusters are resident at the time, and other kernels on
// some SMs slow a GEMM down by their share alone.
#pragma once

#include "core/tensor.hpp"
#include "kernels/cuda/gemm/hopper/tiles.hpp"
#include "kernels/cuda/hopper/barriers.cuh"
#include "kernels/cuda/hopper/tma.cuh"

namespace trireme::kernels::cuda {

/// The matrices as TMA sees them.
struct GemmMaps {
  CUtensorMap a, b;
  CUtensorMap c, aux;  ///< in boxes of 16 rows, or of 64 if they are loaded
  /// gated_gradient: the columns of up, c and aux those of gate; gated: likewise of c alone, and
  /// all boxes that are stored have 32 columns
  CUtensorMap second_c, second_aux;
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
  PartArrivals arrivals;
  int part_rows;  ///< clusters' tiles in a part of the rows
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
      (1 + (reads_aux(Tile::kEpilogue) ? Tile::kConsumers : 0) + 4 * Tile::kConsumers);

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
  /// Of a set of buffers that a part of aux is loaded to; it is empty when four warps have stored
  /// what they put there.
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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Waits until the part of the rows that holds row `row` of clusters' tiles is there, by the thread
/// that loads it. `seen` has a bit for each part that is known to be.
__device__ __forceinline__ void await_rows(const GemmParameters& p, int row, unsigned& seen) {
  const int part = row / p.part_rows;
  if (part == p.arrivals.own || seen >> part & 1) return;
  std::uint32_t shown;
  while (true) {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(shown)
                 : "l"(__cvta_generic_to_global(p.arrivals.flags + part))
                 : "memory");
    if (flag_reached(shown, p.arrivals.epoch)) break;
    __nanosleep(64);
  }
  // What TMA reads from here on is after what the flag tells of.
  asm volatile("fence.proxy.async.global;" ::: "memory");
  seen |= 1u << part;
}

/// Which cluster of how many a block belongs to, and its index there.
struct Position {
  int cluster, clusters, rank;
};

/// The cluster's first ticket, and the next, of which the last is beyond the last unit: by one
/// thread of block 0.
__device__ __forceinline__ int draw_ticket(const GemmParameters& p, int clusters) {
  return p.schedule.given_units(clusters) +
         static_cast<int>(atomicInc(p.tickets, p.schedule.tickets(clusters) - 1));
}
__device__ __forceinline__ int first_ticket(const GemmParameters& p, const Position& position) {
  return p.schedule.given_units(position.clusters) > 0 ? position.cluster
                                                       : draw_ticket(p, position.clusters);
}

/// Reads the cluster's tickets in their order.
template <typename Tile>
class TicketReader {
 public:
  __device__ explicit TicketReader(const GemmMemory<Tile>& memory) : memory_(memory) {}

  /// Writes the next ticket to all blocks of the cluster: by the thread that has drawn it.
  __device__ __forceinline__ void publish(int ticket) const {
    wait(memory_.ticket_empty(place_.stage), place_.parity ^ 1);
#pragma unroll
    for (int rank = 0; rank < Tile::kCluster; ++rank)
      store_at(memory_.ticket(place_.stage), ticket, memory_.ticket_full(place_.stage), rank);
  }
  /// Announces the next ticket's bytes to its barrier: by one thread of each block, before next().
  __device__ __forceinline__ void expect() const {
    arrive_expect_tx(memory_.ticket_full(place_.stage), sizeof(int));
  }
  /// The next ticket, for one thread.
  __device__ __forceinline__ int next() {
    wait(memory_.ticket_full(place_.stage), place_.parity);
    const int ticket = *static_cast<const volatile int*>(memory_.ticket(place_.stage));
    arrive_at(memory_.ticket_empty(place_.stage), 0);
    place_.advance();
    return ticket;
  }
  /// The next ticket, for a whole warp.
  __device__ __forceinline__ int next_of_warp() {
    int ticket = 0;
    if (threadIdx.x % 32 == 0) {
      wait(memory_.ticket_full(place_.stage), place_.parity);
      ticket = *static_cast<const volatile int*>(memory_.ticket(place_.stage));
      arrive_at(memory_.ticket_empty(place_.stage), 0);
    }
    place_.advance();
    return __shfl_sync(~0u, ticket, 0);
  }

 private:
  const GemmMemory<Tile>& memory_;
  RingPlace<GemmMemory<Tile>::kTickets> place_;
};

#endif

}  // namespace trireme::kernels::cuda
