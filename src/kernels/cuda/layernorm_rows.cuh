// How the backward pass of layer normalisation comes by its rows: which threads take which columns,
// copies that run ahead, and sums over a row.
#pragma once

#include "kernels/cuda/common/async_copies.cuh"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/normalize.cuh"

namespace trireme::kernels::cuda {

/// Groups of 16 bytes of a row that a thread takes at most; wider rows get teams of more warps.
/// What does not fit a block of kNormThreads so, and rows that cannot be read 16 bytes at a time,
/// take blocks of kWideNormThreads with kWideNormColumns columns a thread.
inline constexpr int kNormThreads = 256;
inline constexpr int kMostNormGroups = 5;
inline constexpr int kWideNormThreads = 512;
inline constexpr int kWideNormColumns = 32;
static_assert(kWideNormThreads * kWideNormColumns >= kMaxRowColumns);

/// Rows that a team has under way at most: those asked for and the one it works on.
inline constexpr int kMostNormStages = 4;

/// What the kernel reads and writes, and how it is cut into teams.
template <typename T>
struct NormGradients {
  const T* dout;
  const T* x;
  const T* weight;
  const float* mean;
  const float* rstd;
  T* dx;
  T* out;           // null: not asked for
  const T* bias;    // of the forward pass, for out
  float* partials;  // [blocks, 2 or 3, h]: of dweight, dbias, and dx_sum
  std::int64_t rows;
  int h;
  int team_threads;
  int stages;
};

/// How a block works on rows: kBlockThreads threads in teams, of which each thread takes kGroups
/// groups of kWidth columns, or as many as the row has; whether the new dx is summed, too.
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
  /// Narrow rows leave registers for two blocks, which they need to keep memory busy.
  static constexpr int kResidentBlocks = kGroups <= 2 ? 2 : 1;
  /// Whether rows are copied to shared memory before their turn: 16 bytes at a time.
  static constexpr bool kStaged = kWidth > 1;
  static constexpr int kStageBytes = kStaged ? 3 * kGroups * kBlockThreads * 16 : 0;
  /// Whether there are registers to keep the weights in.
  static constexpr bool kHoldsWeight = kBlockThreads == kNormThreads && kSums * kGroups <= 12;
};

/// The columns of a row that are a thread's own.
template <typename P>
struct NormShare {
  int team_threads, member, h;

  __device__ __forceinline__ int column(int g) const {
    return (g * team_threads + member) * P::kWidth;
  }
  __device__ __forceinline__ bool has(int g) const { return column(g) < h; }
};

/// The three matrices that are read.
enum NormOperand { kX, kDout, kDx };

/// The rows of a team in shared memory. A thread copies and reads its own share only, so nobody
/// waits for anybody. What lies beyond the end of a row is zero.
template <typename P>
class StagedNormRows {
  using T = typename P::T;
  using Group = typename P::Group;

 public:
  __device__ explicit StagedNormRows(const NormShare<P>& own) : own_(own) {}

  /// Clears what no row fills.
  __device__ __forceinline__ void clear(int stages) {
    for (int stage = 0; stage < stages; ++stage)
#pragma unroll
      for (int g = 0; g < P::kGroups; ++g)
#pragma unroll
        for (int operand = 0; operand < 3; ++operand)
          if (!own_.has(g)) *slot(stage, g, operand) = Group{};
  }

  /// Asks for `row`, unless it is `end` or behind it.
  __device__ __forceinline__ void ask(const NormGradients<T>& args, int stage, int row, int end) {
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
    commit_copies();  // of none, too: what is waited for is a number of groups
  }

  /// Waits for the oldest of `stages` rows.
  __device__ __forceinline__ void wait(int stages) {
    static_assert(kMostNormStages == 4);
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

  NormShare<P> own_;
};

/// Replaces both `sums` by their sums over the threads of a team, the same bits in each of them.
/// All threads of a block call it together. `shared` may not be that of the previous call: a caller
/// who alternates between two needs no other barrier.
template <int kWarps>
__device__ __forceinline__ void row_sums(float (&sums)[2], int team_threads,
                                         float (&shared)[kWarps][2]) {
  sums[0] = warp_sum(sums[0]);
  sums[1] = warp_sum(sums[1]);
  if (team_threads == 32) return;
  const int warp = threadIdx.x / 32, team_warps = team_threads / 32;
  if (threadIdx.x % 32 == 0) {
    shared[warp][0] = sums[0];
    shared[warp][1] = sums[1];
  }
  __syncthreads();
  const int first = warp / team_warps * team_warps;
  sums[0] = shared[first][0];
  sums[1] = shared[first][1];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    if (i >= team_warps) break;
    sums[0] += shared[first + i][0];
    sums[1] += shared[first + i][1];
  }
}

}  // namespace trireme::kernels::cuda
