// How the backward pass of layer normalisation reads its rows: which threads take which columns,
// copies to shared memory that run ahead, and sums over a row.
#pragma once

#include "kernels/cuda/common/async_copies.cuh"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/normalize.cuh"

namespace trireme::kernels::cuda {

/// Groups of 16 bytes of a row that a thread takes; wider rows get teams of more warps. Rows that
/// do not fit the threads of a block so, and rows that cannot be read 16 bytes at a time, take
/// blocks of kWideNormThreads with kWideNormColumns columns a thread.
inline constexpr int kNormGroups = 4;
inline constexpr int kWideNormThreads = 512;
inline constexpr int kWideNormColumns = 32;
static_assert(kWideNormThreads * kWideNormColumns >= kMaxRowColumns);

/// Threads of a block: as many as have registers for the sums of their columns.
template <bool kSumsDx>
inline constexpr int kNormThreads = kSumsDx ? 256 : 384;

/// Rows that a team has in shared memory at most: those prefetched and the one it works on.
inline constexpr int kMaxNormStages = 4;

/// What the kernel reads and writes, and how it is cut into teams.
template <typename T>
struct NormGradients {
  const T* dout;
  const T* x;
  const T* weight;
  const float* mean;  // null: RMS norm
  const float* rstd;
  T* dx;
  T* out;           // null: not asked for
  const T* bias;    // of the forward pass, for out; null: none
  float* partials;  // [blocks, 2 or 3, h]: of dweight, dbias, and dx_sum
  std::int64_t rows;
  int h;
  int team_threads;
  int stages;
};

/// How a block works on rows: at most kBlockThreads threads in teams, of which each thread takes
/// kGroups groups of kWidth columns, or as many as the row has; whether the new dx is summed, too.
template <typename T_, int kWidth_, int kGroups_, int kBlockThreads_, bool kSumsDx_>
struct NormPlan {
  using T = T_;
  using Group = Elements<T, kWidth_>;
  static constexpr int kWidth = kWidth_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kBlockThreads = kBlockThreads_;
  static constexpr int kWarps = kBlockThreads / 32;
  static constexpr bool kSumsDx = kSumsDx_;
  static constexpr int kSums = kSumsDx ? 3 : 2;
  /// Whether rows are copied to shared memory before their turn: 16 bytes at a time.
  static constexpr bool kStaged = kWidth > 1;
  static constexpr int kStageBytes = kStaged ? 3 * kGroups * kBlockThreads * 16 : 0;
  /// Whether there are registers to keep the weights in.
  static constexpr bool kHoldsWeight = kBlockThreads < kWideNormThreads;
};

/// The columns of a row that a thread takes.
template <typename P>
struct NormColumns {
  int team_threads, member, h;

  __device__ __forceinline__ int column(int g) const {
    return (g * team_threads + member) * P::kWidth;
  }
  __device__ __forceinline__ bool has(int g) const { return column(g) < h; }
};

/// The three matrices that are read.
enum NormOperand { kX, kDout, kDx };

/// The rows of a team in shared memory. A thread copies and reads its own columns only, so no
/// thread waits for another one.
template <typename P>
class StagedNormRows {
  using T = typename P::T;
  using Group = typename P::Group;

 public:
  __device__ explicit StagedNormRows(const NormColumns<P>& own) : own_(own) {}

  /// Starts copying `row`, unless it is `end` or after it.
  __device__ __forceinline__ void prefetch(const NormGradients<T>& args, int stage, int row,
                                           int end) {
    if (row < end) {
      const std::int64_t first = std::int64_t{row} * own_.h;
#pragma unroll
      for (int g = 0; g < P::kGroups; ++g) {
        if (!own_.has(g)) break;
        const std::int64_t offset = first + own_.column(g);
        copy_async<16>(slot(stage, g, kX), args.x + offset, true);
        copy_async<16>(slot(stage, g, kDout), args.dout + offset, true);
        copy_async<16>(slot(stage, g, kDx), args.dx + offset, true);
      }
    }
    commit_copies();  // also without a row: wait() counts groups of copies
  }

  /// Waits for the oldest of `stages` rows.
  __device__ __forceinline__ void wait(int stages) {
    static_assert(kMaxNormStages == 4);
    if (stages == 4)
      wait_copies<3>();
    else if (stages == 3)
      wait_copies<2>();
    else if (stages == 2)
      wait_copies<1>();
    else
      wait_copies<0>();
  }

  __device__ __forceinline__ Values<P::kWidth> read(int stage, int g, NormOperand operand) {
    return widen(load<P::kWidth>(reinterpret_cast<const T*>(slot(stage, g, operand))));
  }

 private:
  __device__ __forceinline__ Group* slot(int stage, int g, int operand) {
    return reinterpret_cast<Group*>(shared_memory() + stage * P::kStageBytes) +
           (g * 3 + operand) * P::kBlockThreads + threadIdx.x;
  }

  NormColumns<P> own_;
};

/// Replaces both `sums` by their sums over the threads of a team, the same bits in each of them.
/// Teams do not wait for each other: each of several warps has a named barrier. `shared` may not be
/// that of the team's previous call: a caller that alternates between two needs no other barrier.
template <int kWarps>
__device__ __forceinline__ void team_sums(float (&sums)[2], int team, int team_threads,
                                          float (&shared)[kWarps][2]) {
  sums[0] = warp_sum(sums[0]);
  sums[1] = warp_sum(sums[1]);
  if (team_threads == 32) return;
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32][0] = sums[0];
    shared[threadIdx.x / 32][1] = sums[1];
  }
  // Barrier 0 is that of __syncthreads().
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(team_threads) : "memory");
  const int team_warps = team_threads / 32, first = team * team_warps;
  sums[0] = shared[first][0];
  sums[1] = shared[first][1];
  for (int warp = first + 1; warp < first + team_warps; ++warp) {
    sums[0] += shared[warp][0];
    sums[1] += shared[warp][1];
  }
}

}  // namespace trireme::kernels::cuda
