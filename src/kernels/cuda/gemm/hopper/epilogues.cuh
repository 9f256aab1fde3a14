// The epilogues of the GEMM algorithms for Hopper. A consumer warpgroup stages parts of its tile,
// of 64 x 64 elements, in shared memory, from where TMA stores them while the next is computed.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/gemm/hopper/mainloop.cuh"
#include "kernels/cuda/hopper/tma.cuh"

namespace trireme::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Adds the values of two lanes, of which each keeps one half of the sums.
template <int kHalf>
__device__ __forceinline__ void exchange_halves(float (&values)[16]) {
  constexpr int kDistance = 2 * kHalf;
  const bool upper = threadIdx.x & kDistance;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float low = values[i], high = values[kHalf + i];
    values[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, kDistance);
  }
}

/// The sums over the 8 lanes with the same lane % 4 of sixteen values each; lane l gets those of
/// values 2 (l / 4) and the next.
__device__ __forceinline__ float2 sum_over_rows(float (&values)[16]) {
  exchange_halves<8>(values);
  exchange_halves<4>(values);
  exchange_halves<2>(values);
  return {values[0], values[1]};
}

/// Where a consumer's tile lies in C.
struct TilePlace {
  int row, column;
};

/// Where the tile of `unit` lies that block `rank` of a cluster has.
template <typename Tile>
__device__ __forceinline__ TilePlace place_of(const GemmUnit& unit, int rank) {
  return {(unit.row * Tile::kCluster + rank) * Tile::kRows, unit.column * Tile::kColumns};
}

/// Consumer `consumer` of a block: what it does with the tiles that it multiplies.
template <typename T, typename Tile>
struct GemmEpilogue {
  static constexpr int kParts = Tile::kPanels * Tile::kBlocks;  ///< of 64 x 64 elements, in a tile
  static constexpr bool kGelu = is_gelu(Tile::kEpilogue);
  using Accumulators = GemmAccumulators<T, Tile>;
  /// The activation function.
  using Function = std::conditional_t<Tile::kEpilogue == TileEpilogue::exact_gelu ||
                                          Tile::kEpilogue == TileEpilogue::exact_gelu_gradient,
                                      ExactGelu<T>, Gelu<T>>;

  const GemmMemory<Tile>& memory;
  const GemmMaps& maps;
  const GemmParameters& p;
  const int consumer, thread, warp, lane;
  const int first_row;  ///< bytes to the row of a buffer that this lane addresses
  unsigned parts = 0;   ///< staged so far

  __device__ GemmEpilogue(const GemmMemory<Tile>& memory, const GemmMaps& maps,
                          const GemmParameters& p, int consumer)
      : memory(memory),
        maps(maps),
        p(p),
        consumer(consumer),
        thread(threadIdx.x % 128),
        warp(thread / 32),
        lane(thread % 32),
        first_row((16 * warp + lane % 16) * kPanelRowBytes) {}

  __device__ __forceinline__ void meet_consumer() const { named_barrier_sync(1 + consumer, 128); }

  // The elements of a lane in columns 16 k .. 16 k + 15 of its warp's 16 rows of a part: their
  // place in its buffer.
  __device__ __forceinline__ unsigned char* fragment(unsigned char* buffer, int k) const {
    return buffer + first_row + ((2 * k + lane / 16) ^ (lane % 8)) * 16;
  }

  // Stores this warp's rows of a part, of which `row` and `column` are the first; by one lane.
  __device__ __forceinline__ void store_rows(const CUtensorMap& map, const unsigned char* buffer,
                                             int row, int column) const {
    tma_store(map, buffer + 16 * warp * kPanelRowBytes, column, row + 16 * warp);
  }

  // The bias of this lane's columns of a panel, of which `column` is the first, or zeros.
  __device__ __forceinline__ void load_bias(std::uint32_t (&bias)[8], int column) const {
    const T* const from = static_cast<const T*>(p.bias) + column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      bias[i] = p.bias && column + 8 * i < p.n ? load<2>(from + 8 * i).words[0] : 0u;
  }

  // store and those with is_gelu(). Each warp stages and stores 16 rows of every part by itself.
  __device__ __forceinline__ void store(const Accumulators& accumulators, TilePlace place) {
    constexpr int kSets = Tile::kSets;
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = place.column + kPanelColumns * panel;
      std::uint32_t bias[8];
      load_bias(bias, column);
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block, ++parts) {
        const int row = place.row + 64 * block;
        unsigned char* const sums = memory.buffer(consumer, parts % kSets * Tile::kTogether);
        unsigned char* const activated = sums + Tile::kBufferBytes;
        if (lane == 0) tma_store_wait_read<kSets - 1>();
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          std::uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* const pair = &accumulators.tile[block][32 * panel + 8 * k + 2 * i];
            const Values<2> b = widen(Elements<T, 2>{{bias[2 * k + i / 2]}});
            words[i] = pack_pair<T>(pair[0] + b[0], pair[1] + b[1]);
          }
          store_matrices(fragment(sums, k), words);
          if constexpr (kGelu) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const Values<2> x = widen(Elements<T, 2>{{words[i]}});
              words[i] = pack_pair<T>(Function(x[0]).value(x[0]), Function(x[1]).value(x[1]));
            }
            store_matrices(fragment(activated, k), words);
          }
        }
        publish_shared();
        __syncwarp();
        if (lane == 0) {
          store_rows(kGelu ? maps.aux : maps.c, sums, row, column);
          if constexpr (kGelu) store_rows(maps.c, activated, row, column);
          commit_stores();
        }
      }
    }
  }

  // gated: the accumulators of gate come before those of the same columns of up. Each warp stages
  // and stores 16 rows of 32 columns of both and of what they make.
  __device__ __forceinline__ void gated(const Accumulators& accumulators, TilePlace place) {
    constexpr int kSets = Tile::kSets;
    constexpr int kUps = Tile::kColumns / 4;  // from an accumulator of gate to that of up
    constexpr int kWarpBytes = 16 * kHalfPanelRowBytes;
    const auto half_fragment = [&](unsigned char* buffer, int k) {
      return buffer + half_panel_unit(lane % 16, 2 * k + lane / 16);
    };
#pragma unroll
    for (int part = 0; part < Tile::kPanels; ++part)
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block, ++parts) {
        unsigned char* const gates =
            memory.buffer(consumer, parts % kSets * Tile::kTogether) + warp * kWarpBytes;
        unsigned char* const ups = gates + 4 * kWarpBytes;
        unsigned char* const activated = gates + Tile::kBufferBytes;
        if (lane == 0) tma_store_wait_read<kSets - 1>();
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          std::uint32_t gate[4], up[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* const pair = &accumulators.tile[block][16 * part + 8 * k + 2 * i];
            gate[i] = pack_pair<T>(pair[0], pair[1]);
            up[i] = pack_pair<T>(pair[kUps], pair[kUps + 1]);
          }
          store_matrices(half_fragment(gates, k), gate);
          store_matrices(half_fragment(ups, k), up);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const Values<2> x = widen(Elements<T, 2>{{gate[i]}});
            const Values<2> y = widen(Elements<T, 2>{{up[i]}});
            gate[i] =
                pack_pair<T>(y[0] * Silu<T>(x[0]).value(x[0]), y[1] * Silu<T>(x[1]).value(x[1]));
          }
          store_matrices(half_fragment(activated, k), gate);
        }
        publish_shared();
        __syncwarp();
        if (lane == 0) {
          const int row = place.row + 64 * block + 16 * warp;
          const int column = place.column / 2 + kHalfPanelColumns * part;
          tma_store(maps.c, gates, column, row);
          tma_store(maps.second_c, ups, column, row);
          tma_store(maps.aux, activated, column, row);
          commit_stores();
        }
      }
  }

  // Those with is_gelu_gradient(): parts of aux, which load_aux loads ahead, are overwritten in
  // place.
  __device__ __forceinline__ void gelu_gradient(const Accumulators& accumulators, TilePlace place) {
    const auto release = [&](unsigned part) {
      arrive(memory.aux_empty(consumer, static_cast<int>(part % Tile::kBuffers)));
    };
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = place.column + kPanelColumns * panel;
      float sums[16] = {};
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block, ++parts) {
        const int i = static_cast<int>(parts % Tile::kBuffers);
        unsigned char* const buffer = memory.buffer(consumer, i);
        wait(memory.aux_full(consumer, i), parts / Tile::kBuffers & 1);
        std::uint32_t next[4];
        load_matrices(next, fragment(buffer, 0));
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          std::uint32_t words[4] = {next[0], next[1], next[2], next[3]};
          if (k < 3) load_matrices(next, fragment(buffer, k + 1));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* const pair = &accumulators.tile[block][32 * panel + 8 * k + 2 * i];
            const Values<2> x = widen(Elements<T, 2>{{words[i]}});
            const float low = pair[0] * Function(x[0]).derivative(x[0]);
            const float high = pair[1] * Function(x[1]).derivative(x[1]);
            sums[4 * k + i / 2 * 2] += low;
            sums[4 * k + i / 2 * 2 + 1] += high;
            words[i] = pack_pair<T>(low, high);
          }
          store_matrices(fragment(buffer, k), words);
        }
        publish_shared();
        __syncwarp();
        if (lane == 0) {
          store_rows(maps.c, buffer, place.row + 64 * block, column);
          commit_stores();
          tma_store_wait_read<1>();
          if (panel + block > 0) release(parts - 1);
        }
      }
      add_up(sums, place.row, column);
    }
    if (lane == 0) {
      tma_store_wait_read<0>();
      release(parts - 1);
    }
  }

  // gated_gradient: parts of gate and up, which load_aux loads ahead, are overwritten in place.
  __device__ __forceinline__ void gated_gradient(const Accumulators& accumulators,
                                                 TilePlace place) {
    const auto release = [&](unsigned part) {
      arrive(memory.aux_empty(consumer, static_cast<int>(part % Tile::kSets)));
    };
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block, ++parts) {
        const int set = static_cast<int>(parts % Tile::kSets);
        unsigned char* const gates = memory.buffer(consumer, Tile::kTogether * set);
        unsigned char* const ups = gates + Tile::kBufferBytes;
        wait(memory.aux_full(consumer, set), parts / Tile::kSets & 1);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          std::uint32_t gate[4], up[4];
          load_matrices(gate, fragment(gates, k));
          load_matrices(up, fragment(ups, k));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* const dout = &accumulators.tile[block][32 * panel + 8 * k + 2 * i];
            const Values<2> x = widen(Elements<T, 2>{{gate[i]}});
            const Values<2> y = widen(Elements<T, 2>{{up[i]}});
            const Silu<T> low(x[0]), high(x[1]);
            gate[i] = pack_pair<T>(dout[0] * y[0] * low.derivative(x[0]),
                                   dout[1] * y[1] * high.derivative(x[1]));
            up[i] = pack_pair<T>(dout[0] * low.value(x[0]), dout[1] * high.value(x[1]));
          }
          store_matrices(fragment(gates, k), gate);
          store_matrices(fragment(ups, k), up);
        }
        publish_shared();
        __syncwarp();
        if (lane == 0) {
          const int row = place.row + 64 * block, column = place.column + kPanelColumns * panel;
          store_rows(maps.c, gates, row, column);
          store_rows(maps.second_c, ups, row, column);
          commit_stores();
          tma_store_wait_read<1>();
          if (panel + block > 0) release(parts - 1);
        }
      }
    if (lane == 0) {
      tma_store_wait_read<0>();
      release(parts - 1);
    }
  }

  // Writes the sums over this consumer's rows of a panel, of which `row` and `column` are the
  // first, to p.vector.
  __device__ __forceinline__ void add_up(float (&sums)[16], int row, int column) const {
    const float2 of_warp = sum_over_rows(sums);
    meet_consumer();  // the panel before has been read
    *reinterpret_cast<float2*>(memory.sums(consumer) + 64 * warp + 2 * lane) = of_warp;
    meet_consumer();
    if (thread >= 64 || row >= p.m || column + thread >= p.n) return;
    const float* const of_warps = memory.sums(consumer) + thread;
    p.vector[static_cast<std::int64_t>(row / Tile::kRows) * p.n + column + thread] =
        (of_warps[0] + of_warps[64]) + (of_warps[128] + of_warps[192]);
  }

  // ---- accumulate: parts of the sum over k are added in their order -----------------------------

  __device__ __forceinline__ void accumulate(const Accumulators& accumulators, TilePlace place,
                                             const GemmUnit& unit) {
    const int splits = p.schedule.splits;
    unsigned* const turn = p.turns +
                           static_cast<std::int64_t>(place.row / Tile::kRows) * p.schedule.columns +
                           unit.column;
    if (unit.split > 0) {
      if (thread == 0) wait_for_turn(turn, unit.split);
      meet_consumer();
    }
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = place.row + 64 * block + accumulator_row(thread, 2 * h);
        if (row >= p.m) continue;
        float* const to = p.sum + static_cast<std::int64_t>(row) * p.n + place.column +
                          accumulator_column(thread, 0);
#pragma unroll
        for (int i = 0; i < Tile::kColumns / 8; ++i)
          if (place.column + 8 * i < p.n)
            reduce_add(reinterpret_cast<float2*>(to + 8 * i),
                       {accumulators.tile[block][4 * i + 2 * h],
                        accumulators.tile[block][4 * i + 2 * h + 1]});
        if constexpr (Accumulators::kRowSums)
          if (unit.column == 0 && lane % 4 == 0)
            atomicAdd(p.vector + row, accumulators.row_sums[block][2 * h]);
      }
    if (splits > 1) {
      meet_consumer();
      if (thread == 0) pass_turn(turn, unit.split + 1 == splits ? 0 : unit.split + 1);
    }
  }
};

/// Loads the parts of aux that consumer `consumer` needs, in their order, by one thread.
template <typename Tile>
__device__ __forceinline__ void load_aux(const GemmMemory<Tile>& memory, const GemmMaps& maps,
                                         const GemmSchedule& schedule, int rank, int consumer) {
  RingPlace<Tile::kSets> ring;
  TicketReader<Tile> tickets(memory);
  for (int turn = 0;; ++turn) {
    const int index = tickets.next();
    if (index >= schedule.units()) break;
    if (turn % Tile::kConsumers != consumer) continue;
    const TilePlace place = place_of<Tile>(schedule.unit(index), rank);
#pragma unroll 1
    for (int part = 0; part < Tile::kPanels * Tile::kBlocks; ++part, ring.advance()) {
      Barrier* const full = memory.aux_full(consumer, ring.stage);
      wait(memory.aux_empty(consumer, ring.stage), ring.parity ^ 1);
      arrive_expect_tx(full, Tile::kTogether * Tile::kBufferBytes);
      unsigned char* const buffer = memory.buffer(consumer, Tile::kTogether * ring.stage);
      const int column = place.column + kPanelColumns * (part / Tile::kBlocks);
      const int row = place.row + 64 * (part % Tile::kBlocks);
      tma_load(buffer, maps.aux, full, column, row);
      if constexpr (Tile::kTogether > 1)
        tma_load(buffer + Tile::kBufferBytes, maps.second_aux, full, column, row);
    }
  }
}

#endif

}  // namespace trireme::kernels::cuda
