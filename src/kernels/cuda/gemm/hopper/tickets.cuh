// Which units a cluster computes: it draws a ticket, the index of a unit, whenever it gets free. So
// units are begun in their order, whichever clusters are resident at the time, and other kernels on
// some SMs slow a GEMM down by their share alone.
#pragma once

#include "kernels/cuda/gemm/hopper/memory.cuh"

namespace trireme::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
    arrive_expecting(memory_.ticket_full(place_.stage), sizeof(int));
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
