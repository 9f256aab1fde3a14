// Bound by bytes: dout, x and dx are read once, dx is written once (8 bytes an element in half
// precision). The gradients of the parameters, sums over the rows, are gathered in registers by
// teams of warps that take row after row, merged in a block, and added by a second small kernel.
#include "kernels/layernorm.hpp"

#include "kernels/cuda/common/normalize.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

template <typename T>
struct Gradients {
  const T* dout;
  const T* x;
  const T* weight;
  const float* mean;
  const float* rstd;
  T* dx;
  float* partials;  // [blocks, 2 h]: of dweight, then of dbias
  std::int64_t rows;
  int h;
};

/// What a thread reads of a row.
template <typename T, int kWidth>
struct RowGroup {
  Elements<T, kWidth> x, dout, dx;
};

/// Rows of up to kHeldColumns columns a thread stay in registers until their sums are known; wider
/// ones are read again, then from the second cache.
constexpr int kHeldColumns = 16;

/// Threads of a block at most, and blocks of a multiprocessor: 64 registers a thread for 8 columns.
constexpr int block_threads(int columns) { return columns <= kHeldColumns ? 320 : kRowThreads; }
constexpr int resident_blocks(int width, int columns) {
  if (columns > kHeldColumns) return 1;
  return width == 8 && columns == 8 ? 3 : 2;
}

/// Shared memory that a block gets without asking.
constexpr std::size_t kSharedBytes = 48 << 10;

/// A team takes one row at a time; a thread holds kColumns columns of the sums over the rows.
template <typename T, int kWidth, int kColumns>
__global__ void __launch_bounds__(block_threads(kColumns), resident_blocks(kWidth, kColumns))
    norm_gradients(Gradients<T> args, int team_threads) {
  constexpr int kGroups = kColumns / kWidth;
  constexpr bool kHeld = kColumns <= kHeldColumns;
  __shared__ TeamSums<2> sums_of_rows[2];
  extern __shared__ float merged[];  // [2 h], with several teams
  const Team team(team_threads);
  const int teams = blockDim.x / team_threads;
  const int h = args.h;
  const auto column_of = [&](int g) { return (g * team.threads + team.member) * kWidth; };

  Values<kWidth> dweight[kGroups] = {}, dbias[kGroups] = {};
  const std::int64_t stride = std::int64_t{gridDim.x} * teams;
  int turn = 0;
  for (std::int64_t row = std::int64_t{blockIdx.x} * teams + team.index; row < args.rows;
       row += stride, turn ^= 1) {
    const auto read = [&](int g) {
      const std::int64_t offset = row * h + column_of(g);
      return RowGroup<T, kWidth>{load<kWidth>(args.x + offset), load<kWidth>(args.dout + offset),
                                 load<kWidth>(args.dx + offset)};
    };
    RowGroup<T, kWidth> held[kHeld ? kGroups : 1];
    if constexpr (kHeld) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        if (column_of(g) < h) held[g] = read(g);
    }
    const float mean = args.mean[row], rstd = args.rstd[row];

    // Sums over the row of g = dout * weight and of g * normalized x, which the statistics' own
    // dependence on x takes out of the gradient.
    float sums[2] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= h) break;
      const RowGroup<T, kWidth> group = kHeld ? held[kHeld ? g : 0] : read(g);
      const Values<kWidth> x = widen(group.x), dout = widen(group.dout);
      const Values<kWidth> weight = widen(load<kWidth>(args.weight + column_of(g)));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float normalized = (x[i] - mean) * rstd;
        dweight[g][i] += dout[i] * normalized;
        dbias[g][i] += dout[i];
        sums[0] += dout[i] * weight[i];
        sums[1] += dout[i] * weight[i] * normalized;
      }
    }
    team_sum(team, sums, sums_of_rows[turn]);
    const float plain = sums[0] / static_cast<float>(h);
    const float along = sums[1] / static_cast<float>(h);

#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= h) break;
      const RowGroup<T, kWidth> group = kHeld ? held[kHeld ? g : 0] : read(g);
      const Values<kWidth> x = widen(group.x), dout = widen(group.dout);
      const Values<kWidth> weight = widen(load<kWidth>(args.weight + column_of(g)));
      Values<kWidth> dx = widen(group.dx);
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        dx[i] += rstd * (dout[i] * weight[i] - plain - (x[i] - mean) * rstd * along);
      store(args.dx + row * h + column_of(g), narrow<T>(dx));
    }
  }

  // ---- one team after the other adds its sums; the last one leaves them
  float* partials = args.partials + std::int64_t{blockIdx.x} * 2 * h;
  for (int adds = 0; adds < teams; ++adds) {
    if (team.index == adds) {
      float* out = adds == teams - 1 ? partials : merged;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int column = column_of(g);
        if (column >= h) break;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float before = adds > 0 ? merged[column + i] : 0.0f;
          const float before_bias = adds > 0 ? merged[h + column + i] : 0.0f;
          out[column + i] = before + dweight[g][i];
          out[h + column + i] = before_bias + dbias[g][i];
        }
      }
    }
    __syncthreads();
  }
}

/// Queues norm_gradients; returns the number of its blocks, which is that of rows of partials.
template <int kWidth, int kColumns, typename T>
std::int64_t launch_gradients(const Gradients<T>& args, const Context& context) {
  constexpr int kResidentThreads = resident_blocks(kWidth, kColumns) * block_threads(kColumns);
  const std::size_t merged = sizeof(float) * 2 * args.h;
  const RowTeams teams(args.h, kColumns, merged <= kSharedBytes ? block_threads(kColumns) : 0);
  const std::int64_t needed = (args.rows + teams.teams - 1) / teams.teams;
  const std::int64_t resident =
      std::int64_t{context.multiprocessors} * (kResidentThreads / teams.threads());
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>({needed, resident, kMaxNormBlocks}));
  const std::size_t shared = teams.teams > 1 ? merged : 0;
  norm_gradients<T, kWidth, kColumns>
      <<<blocks, teams.threads(), shared, context.stream>>>(args, teams.team_threads);
  TRIREME_CUDA_LAUNCHED(norm_gradients);
  return blocks;
}

}  // namespace

void layernorm_backward(const LayerNormBackward& args, const Context& context) {
  const char* op = "layernorm_backward";
  const DType dtype = args.x.dtype;
  const Extents extents = extents_of(op, "x", args.x);
  const std::int64_t h = extents.columns;
  check_matrix(op, "x", args.x, dtype, extents);
  check_matrix(op, "dout", args.dout, dtype, extents);
  check_normalization(op, dtype, extents, args.weight, args.weight, args.dx, args.mean, args.rstd);
  check_vector(op, "dweight", args.dweight, DType::f32, h);
  check_vector(op, "dbias", args.dbias, DType::f32, h);
  check_workspace(op, context, layernorm_backward_workspace(h));
  if (extents.rows == 0) return;
  auto* partials = reinterpret_cast<float*>(context.workspace);
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Gradients<T> gradients{args.dout.as<T>(),
                                 args.x.as<T>(),
                                 args.weight.as<T>(),
                                 args.mean.as<float>(),
                                 args.rstd.as<float>(),
                                 args.dx.as<T>(),
                                 partials,
                                 extents.rows,
                                 static_cast<int>(h)};
    std::int64_t blocks = 0;
    const bool vectors =
        rows_aligned16<T>(h, gradients.dout, gradients.x, gradients.weight, gradients.dx);
    dispatch_width<T>(vectors, [&](auto width) {
      constexpr int kMiddle = width == 8 ? kHeldColumns : 8;  // others lack the registers
      if (h <= 8 * block_threads(8))
        blocks = launch_gradients<width, 8>(gradients, context);
      else if (h <= kMiddle * block_threads(kMiddle))
        blocks = launch_gradients<width, kMiddle>(gradients, context);
      else
        blocks = launch_gradients<width, kRowColumns>(gradients, context);
    });
    add_partial_columns(partials, blocks, 2 * h, args.dweight.as<float>(), h,
                        args.dbias.as<float>(), context);
  });
}

}  // namespace trireme::kernels::cuda
