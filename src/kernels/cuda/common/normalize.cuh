// Layer normalisation of rows that are made on the way: each row lives in the registers of a team
// of warps from its reading to its writing, so its statistics cost no second pass over memory.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/reductions.cuh"
#include "kernels/cuda/context.hpp"
#include "kernels/layernorm.hpp"

namespace trireme::kernels::cuda {

/// Threads of a block of the row kernels at most, and columns of a row that one thread holds at
/// most.
inline constexpr int kRowThreads = 512;
inline constexpr int kRowColumns = 32;
static_assert(kRowThreads * kRowColumns >= kMaxRowColumns);

/// Rows at most: kernels count them in int, with room for the rows that they ask for ahead.
inline constexpr std::int64_t kMaxRows = 1 << 30;

/// How warps of a block are cut into teams, one a row.
struct RowTeams {
  int team_threads;
  int teams;

  /// For rows of h columns, `columns_per_thread` of them a thread, and blocks of about
  /// `block_threads`.
  RowTeams(std::int64_t h, int columns_per_thread, int block_threads)
      : team_threads(
            static_cast<int>((h + 32 * columns_per_thread - 1) / (32 * columns_per_thread) * 32)),
        teams(std::max(1, block_threads / team_threads)) {}

  int threads() const { return team_threads * teams; }
};

/// What LayerNormForward gets and writes besides its rows.
template <typename T>
struct Normalization {
  const T* weight;
  const T* bias;
  T* out;
  float* mean;
  float* rstd;
  float eps;
};

/// A value of the result. Rounded as written, so that who computes it again gets the same bits.
__device__ __forceinline__ float normalized(float value, float mean, float rstd, float weight,
                                            float bias) {
  return __fmaf_rn(__fmul_rn(__fsub_rn(value, mean), rstd), weight, bias);
}

/// Normalises rows of h columns; source.load(row, column) and source.finish(row, column, inputs)
/// make the group of kWidth elements that begins there.
template <typename T, int kWidth, typename Source>
__global__ void __launch_bounds__(kRowThreads)
    normalize_rows(Source source, Normalization<T> norm, std::int64_t rows, int h,
                   int team_threads) {
  constexpr int kGroups = kRowColumns / kWidth;
  __shared__ TeamSums<1> sums_of_values, sums_of_squares;
  const Team team(team_threads);
  const std::int64_t row = std::int64_t{blockIdx.x} * (blockDim.x / team_threads) + team.index;
  if (row >= rows) return;

  // ---- the row
  Elements<T, kWidth> groups[kGroups];
  {
    typename Source::Inputs inputs[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int column = (g * team.threads + team.member) * kWidth;
      if (column < h) inputs[g] = source.load(row, column);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int column = (g * team.threads + team.member) * kWidth;
      if (column < h) groups[g] = source.finish(row, column, inputs[g]);
    }
  }

  // ---- its statistics
  float sum[1] = {0.0f};
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if ((g * team.threads + team.member) * kWidth >= h) break;
    const Values<kWidth> values = widen(groups[g]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[0] += values[i];
  }
  team_sum(team, sum, sums_of_values);
  const float mean = sum[0] / static_cast<float>(h);
  float squares[1] = {0.0f};
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if ((g * team.threads + team.member) * kWidth >= h) break;
    const Values<kWidth> values = widen(groups[g]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares[0] += (values[i] - mean) * (values[i] - mean);
  }
  team_sum(team, squares, sums_of_squares);
  const float rstd = __frsqrt_rn(squares[0] / static_cast<float>(h) + norm.eps);
  if (team.member == 0) {
    norm.mean[row] = mean;
    norm.rstd[row] = rstd;
  }

  // ---- the result
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int column = (g * team.threads + team.member) * kWidth;
    if (column >= h) break;
    const Values<kWidth> weight = widen(load<kWidth>(norm.weight + column));
    const Values<kWidth> bias = widen(load<kWidth>(norm.bias + column));
    Values<kWidth> values = widen(groups[g]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      values[i] = normalized(values[i], mean, rstd, weight[i], bias[i]);
    store(norm.out + row * h + column, narrow<T>(values));
  }
}

/// Queues normalize_rows over the rows of `extents`.
template <int kWidth, typename T, typename Source>
void launch_normalize(const Source& source, const Normalization<T>& norm, const Extents& extents,
                      const Context& context) {
  if (extents.rows == 0) return;
  const RowTeams teams(extents.columns, kRowColumns, 256);
  const auto blocks = static_cast<unsigned>((extents.rows + teams.teams - 1) / teams.teams);
  normalize_rows<T, kWidth><<<blocks, teams.threads(), 0, context.stream>>>(
      source, norm, extents.rows, static_cast<int>(extents.columns), teams.team_threads);
  TRIREME_CUDA_LAUNCHED(normalize_rows);
}

/// The preconditions of a normalisation of rows of `extents` of `dtype`.
inline void check_normalization(const char* op, DType dtype, const Extents& extents,
                                const Tensor& weight, const Tensor& bias, const Tensor& out,
                                const Tensor& mean, const Tensor& rstd) {
  TRIREME_CHECK(extents.columns >= 1 && extents.columns <= kMaxRowColumns,
                "{}: rows of {} elements, expected 1 to {}", op, extents.columns, kMaxRowColumns);
  TRIREME_CHECK(extents.rows <= kMaxRows, "{}: {} rows, at most {} are possible", op, extents.rows,
                kMaxRows);
  check_vector(op, "weight", weight, dtype, extents.columns);
  check_vector(op, "bias", bias, dtype, extents.columns);
  check_matrix(op, "out", out, dtype, extents);
  check_vector(op, "mean", mean, DType::f32, extents.rows);
  check_vector(op, "rstd", rstd, DType::f32, extents.rows);
}

}  // namespace trireme::kernels::cuda
