// Layer normalisation of rows that are made on the way: each row lives in the registers of a warp
// or a block from its reading to its writing, so its statistics cost no second pass over memory.
// And how the backward pass reads its rows.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/context.hpp"
#include "kernels/norms.hpp"

namespace trireme::kernels::cuda {

/// Rows at most: kernels count them in int, with room for the rows that they prefetch.
inline constexpr std::int64_t kMaxRows = 1 << 30;

/// Threads of a block at most; rows of one warp share a block of kNormalizeThreads.
inline constexpr int kNormalizeThreads = 128;
inline constexpr int kMaxRowThreads = 512;

/// Groups of kWidth columns of the widest rows that a thread holds.
template <int kWidth>
inline constexpr int kMaxRowGroups =
    (static_cast<int>(kMaxRowColumns) / kWidth + kMaxRowThreads - 1) / kMaxRowThreads;

/// What LayerNormForward gets and writes besides its rows. For NormKind::rms, mean is null, and
/// bias points to the weight but has the factor 0, not 1: a branch would take a quarter more
/// registers.
template <typename T>
struct Normalization {
  const T* weight;
  const T* bias;
  T* out;
  float* mean;
  float* rstd;
  float eps;
  float bias_factor;
  float* amax;  // of out; null: not asked for
};

/// A value of the result. Rounded as written, so that recomputing it gives the same bits.
__device__ __forceinline__ float normalized(float value, float mean, float rstd, float weight,
                                            float bias) {
  return __fmaf_rn(__fmul_rn(__fsub_rn(value, mean), rstd), weight, bias);
}

/// The sum over the threads of a row, the same bits in each of them: a warp, or the whole block.
/// `sums` may not be that of the block's previous call.
__device__ __forceinline__ float row_sum(float value, int row_threads,
                                         float (&sums)[kMaxRowThreads / 32]) {
  value = warp_sum(value);
  if (row_threads == 32) return value;
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = sums[0];
  for (int warp = 1; warp < row_threads / 32; ++warp) value += sums[warp];
  return value;
}

/// Normalises rows of h columns; source.load(row, column) and source.finish(row, column, inputs)
/// make the group of kWidth elements that begins there. A row has a warp or a block; no block works
/// on more rows than it has at a time, since the GPU replaces blocks faster than they could loop.
template <typename T, int kWidth, int kGroups, typename Source>
__global__ void __launch_bounds__(kMaxRowThreads)
    normalize_rows(Source source, Normalization<T> norm, int rows, int h, int row_threads) {
  __shared__ float sums_of_values[kMaxRowThreads / 32], sums_of_squares[kMaxRowThreads / 32];
  wait_for_previous_kernel();
  const int row_in_block = threadIdx.x / row_threads;
  const int member = threadIdx.x - row_in_block * row_threads;
  const int row = blockIdx.x * (blockDim.x / row_threads) + row_in_block;
  if (row >= rows) return;
  const auto column_of = [&](int g) { return (g * row_threads + member) * kWidth; };

  // ---- the row
  Elements<T, kWidth> groups[kGroups];
  {
    typename Source::Inputs inputs[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (column_of(g) < h) inputs[g] = source.load(row, column_of(g));
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (column_of(g) < h) groups[g] = source.finish(row, column_of(g), inputs[g]);
  }

  // ---- its statistics
  float mean = 0.0f;
  if (norm.mean != nullptr) {
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= h) break;
      const Values<kWidth> values = widen(groups[g]);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += values[i];
    }
    mean = row_sum(sum, row_threads, sums_of_values) / static_cast<float>(h);
  }
  float squares = 0.0f;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column_of(g) >= h) break;
    const Values<kWidth> values = widen(groups[g]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares += (values[i] - mean) * (values[i] - mean);
  }
  squares = row_sum(squares, row_threads, sums_of_squares);
  const float rstd = __frsqrt_rn(squares / static_cast<float>(h) + norm.eps);
  if (member == 0) {
    if (norm.mean != nullptr) norm.mean[row] = mean;
    norm.rstd[row] = rstd;
  }

  // ---- the result
  LargestMagnitude<T> largest(norm.amax);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int column = column_of(g);
    if (column >= h) break;
    const Values<kWidth> weight = widen(load<kWidth>(norm.weight + column));
    const Values<kWidth> bias = widen(load<kWidth>(norm.bias + column));
    Values<kWidth> values = widen(groups[g]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      values[i] = normalized(values[i], mean, rstd, weight[i], bias[i] * norm.bias_factor);
    const Elements<T, kWidth> rounded = narrow<T>(values);
    largest.take(rounded);
    store(norm.out + std::int64_t{row} * h + column, rounded);
  }
  largest.raise();
}

/// Enqueues normalize_rows over the rows of `extents`.
template <int kWidth, typename T, typename Source>
void launch_normalize(const Source& source, const Normalization<T>& norm, const Extents& extents,
                      const Context& context) {
  if (extents.rows == 0) return;
  const int rows = static_cast<int>(extents.rows), h = static_cast<int>(extents.columns);
  const int needed = (h + kWidth - 1) / kWidth;  // groups of a row
  const auto threads_for = [needed](int groups) {
    return std::min((needed + 32 * groups - 1) / (32 * groups) * 32, kMaxRowThreads);
  };
  const auto launch = [&](auto groups, int row_threads) {
    const int threads = row_threads == 32 ? kNormalizeThreads : row_threads;
    const int rows_per_block = threads / row_threads;
    const auto blocks = static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block);
    launch_dependent(normalize_rows<T, kWidth, groups, Source>, blocks, threads, 0, context, source,
                     norm, rows, h, row_threads);
    TRIREME_CUDA_LAUNCHED(normalize_rows);
  };
  constexpr int kMax = kMaxRowGroups<kWidth>;
  if constexpr (kWidth > 1) {
    const int row_threads = threads_for(5), groups = (needed + row_threads - 1) / row_threads;
    if (groups <= 3) return launch(std::integral_constant<int, 3>{}, row_threads);
    if (groups == 4) return launch(std::integral_constant<int, 4>{}, row_threads);
    if (kMax <= 5 || groups == 5) return launch(std::integral_constant<int, 5>{}, row_threads);
  }
  if constexpr (kWidth == 1 || kMax > 5)
    launch(std::integral_constant<int, kMax>{}, threads_for(kMax));
}

/// The preconditions of a normalisation of rows of `extents` of `dtype`; bias and mean are not read
/// for NormKind::rms.
inline void check_normalization(const char* op, DType dtype, const Extents& extents, NormKind kind,
                                const Tensor& weight, const Tensor& bias, const Tensor& out,
                                const Tensor& mean, const Tensor& rstd) {
  TRIREME_CHECK(extents.columns >= 1 && extents.columns <= kMaxRowColumns,
                "{}: rows of {} elements, expected 1 to {}", op, extents.columns, kMaxRowColumns);
  TRIREME_CHECK(extents.rows <= kMaxRows, "{}: {} rows, at most {} are possible", op, extents.rows,
                kMaxRows);
  check_vector(op, "weight", weight, dtype, extents.columns);
  check_matrix(op, "out", out, dtype, extents);
  check_vector(op, "rstd", rstd, DType::f32, extents.rows);
  if (kind == NormKind::rms) return;
  check_vector(op, "bias", bias, dtype, extents.columns);
  check_vector(op, "mean", mean, DType::f32, extents.rows);
}

/// What the kernel gets of LayerNormForward's tensors.
template <typename T>
Normalization<T> normalization(NormKind kind, const Tensor& weight, const Tensor& bias,
                               const Tensor& out, const Tensor& mean, const Tensor& rstd,
                               double eps) {
  const bool layer = kind == NormKind::layer;
  return {.weight = weight.as<T>(),
          .bias = (layer ? bias : weight).as<T>(),
          .out = out.as<T>(),
          .mean = layer ? mean.as<float>() : nullptr,
          .rstd = rstd.as<float>(),
          .eps = static_cast<float>(eps),
          .bias_factor = layer ? 1.0f : 0.0f,
          .amax = out.amax};
}

// ---- rows of the backward pass: which threads take which columns, copies to shared memory that
// run ahead, and sums over a row

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
  float* amax;      // of dx; null: not asked for
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
