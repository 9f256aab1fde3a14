// Bound by bytes: dout, x and dx are read once, dx is written once (8 bytes an element in half
// precision); and so is out, when asked for (10 bytes). The arithmetic of a row waits for memory
// and then for sums over the row; so that memory never waits for arithmetic, a thread asks for rows
// several turns ahead, into shared memory. Column sums, over the rows, are gathered in registers by
// teams of warps that take row after row, merged in a block, and added by a second small kernel.
#include "kernels/layernorm.hpp"

#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/layernorm_rows.cuh"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

/// A team takes one row at a time.
template <typename P>
__global__ void __launch_bounds__(P::kBlockThreads, P::kResidentBlocks)
    norm_gradients(NormGradients<typename P::T> args) {
  using T = typename P::T;
  constexpr int kWidth = P::kWidth, kGroups = P::kGroups, kSums = P::kSums;
  constexpr bool kStaged = P::kStaged, kHoldsWeight = P::kHoldsWeight;
  __shared__ float sums_of_rows[2][P::kWarps][2];
  const int h = args.h, team_threads = args.team_threads, teams = P::kBlockThreads / team_threads;
  const int team = threadIdx.x / team_threads;
  const NormShare<P> own{team_threads, static_cast<int>(threadIdx.x) - team * team_threads, h};
  const auto begin = static_cast<int>(args.rows * blockIdx.x / gridDim.x);
  const auto end = static_cast<int>(args.rows * (blockIdx.x + 1) / gridDim.x);

  StagedNormRows<P> staged(own);
  if constexpr (kStaged) {
    for (int stage = 0; stage < args.stages; ++stage)
      staged.ask(args, stage, begin + team + stage * teams, end);
    staged.clear(args.stages);
  }
  const auto read_weight = [&](int g) {
    return own.has(g) ? load<kWidth>(args.weight + own.column(g)) : typename P::Group{};
  };
  typename P::Group weights[kHoldsWeight ? kGroups : 1] = {};
  if constexpr (kHoldsWeight) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) weights[g] = read_weight(g);
  }
  const auto weight_of = [&](int g) {
    return widen(kHoldsWeight ? weights[kHoldsWeight ? g : 0] : read_weight(g));
  };
  const auto mean_of = [&](int row) { return row < end ? args.mean[row] : 0.0f; };
  const auto rstd_of = [&](int row) { return row < end ? args.rstd[row] : 0.0f; };

  Values<kWidth> columns[kSums][kGroups] = {};  // sums of dweight, dbias, and dx
  float next_mean = mean_of(begin + team), next_rstd = rstd_of(begin + team);
  int stage = 0, turn = 0;
  for (int first = begin; first < end; first += teams, turn ^= 1) {
    const int row = first + team;
    const bool has_row = row < end;
    const float mean = next_mean, rstd = next_rstd;
    next_mean = mean_of(row + teams);
    next_rstd = rstd_of(row + teams);
    if constexpr (kStaged) staged.wait(args.stages);
    const auto read = [&](int g, NormOperand operand) {
      if constexpr (kStaged) {
        return staged.read(stage, g, operand);
      } else {
        const T* from = operand == kX ? args.x : operand == kDout ? args.dout : args.dx;
        return widen(load<kWidth>(from + std::int64_t{row} * h + own.column(g)));
      }
    };

    // Sums over the row of g = dout * weight and of g * normalized x, which the statistics' own
    // dependence on x takes out of the gradient.
    float sums[2] = {};
    if (has_row) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (!kStaged && !own.has(g)) break;
        const Values<kWidth> x = read(g, kX), dout = read(g, kDout), weight = weight_of(g);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float normalized = (x[i] - mean) * rstd;
          columns[0][g][i] += dout[i] * normalized;
          columns[1][g][i] += dout[i];
          sums[0] += dout[i] * weight[i];
          sums[1] += dout[i] * weight[i] * normalized;
        }
      }
    }
    row_sums(sums, team_threads, sums_of_rows[turn]);
    const float plain = sums[0] / static_cast<float>(h);
    const float along = sums[1] / static_cast<float>(h);

    if (has_row) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (!kStaged && !own.has(g)) break;
        const Values<kWidth> x = read(g, kX), dout = read(g, kDout), weight = weight_of(g);
        Values<kWidth> dx = read(g, kDx);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          dx[i] += rstd * (dout[i] * weight[i] - plain - (x[i] - mean) * rstd * along);
          if constexpr (P::kSumsDx) columns[2][g][i] += dx[i];
        }
        if (!own.has(g)) continue;
        const std::int64_t offset = std::int64_t{row} * h + own.column(g);
        store(args.dx + offset, narrow<T>(dx));
        if (args.out == nullptr) continue;
        const Values<kWidth> bias = widen(load<kWidth>(args.bias + own.column(g)));
        Values<kWidth> out;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) out[i] = normalized(x[i], mean, rstd, weight[i], bias[i]);
        store(args.out + offset, narrow<T>(out));
      }
    }
    if constexpr (kStaged) {
      staged.ask(args, stage, row + args.stages * teams, end);
      stage = stage + 1 == args.stages ? 0 : stage + 1;
    }
  }

  // ---- half of the teams hand their sums to the other half, until one has them all
  auto* handed = reinterpret_cast<float*>(shared_memory());
  const auto place = [&](int to, int s, int g, int i) -> float& {
    return handed[(((to * kSums + s) * kGroups + g) * kWidth + i) * team_threads + own.member];
  };
  for (int takers = teams / 2; takers > 0; takers /= 2) {
    __syncthreads();  // what was there is used: rows at first, then sums
    if (team >= takers && team < 2 * takers) {
#pragma unroll
      for (int s = 0; s < kSums; ++s)
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
          for (int i = 0; i < kWidth; ++i) place(team - takers, s, g, i) = columns[s][g][i];
    }
    __syncthreads();
    if (team < takers) {
#pragma unroll
      for (int s = 0; s < kSums; ++s)
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
          for (int i = 0; i < kWidth; ++i) columns[s][g][i] += place(team, s, g, i);
    }
  }
  if (team > 0) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (!own.has(g)) break;
      store(args.partials + (std::int64_t{blockIdx.x} * kSums + s) * h + own.column(g),
            narrow<float>(columns[s][g]));
    }
  }
}

/// Threads of a team, at most `most`, when each takes at most `columns` columns.
int team_threads_for(std::int64_t h, int columns, int most) {
  int threads = 32;
  while (threads < most && threads * columns < h) threads *= 2;
  return threads;
}

/// Calls function(integral_constant<int, groups>{}) with the fewest groups, up to kGroups, that
/// suffice.
template <int kGroups, typename Function>
void dispatch_groups(std::int64_t groups, const Function& function) {
  if constexpr (kGroups > 1) {
    if (groups < kGroups) return dispatch_groups<kGroups - 1>(groups, function);
  }
  function(std::integral_constant<int, kGroups>{});
}

/// Rows that a team can have under way in the shared memory of a block.
template <typename P>
int stages_of(const Context& context) {
  constexpr int kSystem = 1 << 10;  // of each block
  const int bytes = (context.shared_memory_bytes + kSystem) / P::kResidentBlocks - kSystem -
                    static_cast<int>(sizeof(float[2][P::kWarps][2]));
  return std::min(kMostNormStages, bytes / P::kStageBytes);
}

/// Queues norm_gradients; returns the number of its blocks.
template <typename P>
std::int64_t launch_gradients(NormGradients<typename P::T> args, const Context& context) {
  if constexpr (P::kStaged) args.stages = stages_of<P>(context);
  const int teams = P::kBlockThreads / args.team_threads;
  const int columns = P::kGroups * P::kWidth * args.team_threads;
  const int handed = teams / 2 * P::kSums * columns * static_cast<int>(sizeof(float));
  const int shared = std::max(args.stages * P::kStageBytes, handed);
  // Beyond 48 KiB a kernel has to ask, what it declares itself counted in.
  if (shared > 40 << 10)
    TRIREME_CUDA(cudaFuncSetAttribute(norm_gradients<P>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const std::int64_t needed = (args.rows + teams - 1) / teams;
  const std::int64_t resident = std::int64_t{context.multiprocessors} * P::kResidentBlocks;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>({needed, resident, kMaxNormBlocks}));
  norm_gradients<P><<<blocks, P::kBlockThreads, shared, context.stream>>>(args);
  TRIREME_CUDA_LAUNCHED(norm_gradients);
  return blocks;
}

/// Chooses how to work on rows of this width, and queues norm_gradients.
template <typename T, bool kSumsDx>
std::int64_t queue_gradients(NormGradients<T> args, const Context& context) {
  constexpr int kWidth = 16 / sizeof(T);
  using Wide = NormPlan<T, kWidth, kWideNormColumns / kWidth, kWideNormThreads, kSumsDx>;
  const bool vectors =
      rows_aligned16<T>(args.h, args.dout, args.x, args.weight, args.dx, args.out, args.bias);
  if (vectors && args.h <= kNormThreads * kMostNormGroups * kWidth) {
    args.team_threads = team_threads_for(args.h, kMostNormGroups * kWidth, kNormThreads);
    const int columns = args.team_threads * kWidth;
    std::int64_t blocks = 0;
    dispatch_groups<kMostNormGroups>((args.h + columns - 1) / columns, [&](auto groups) {
      blocks = launch_gradients<NormPlan<T, kWidth, groups, kNormThreads, kSumsDx>>(args, context);
    });
    return blocks;
  }
  args.team_threads = team_threads_for(args.h, kWideNormColumns, kWideNormThreads);
  if (vectors && stages_of<Wide>(context) > 0) return launch_gradients<Wide>(args, context);
  return launch_gradients<NormPlan<T, 1, kWideNormColumns, kWideNormThreads, kSumsDx>>(args,
                                                                                       context);
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
  if (args.dx_sum) check_vector(op, "dx_sum", args.dx_sum, DType::f32, h);
  if (args.out) {
    check_matrix(op, "out", args.out, dtype, extents);
    check_vector(op, "bias", args.bias, dtype, h);
  }
  check_workspace(op, context, layernorm_backward_workspace(h));
  if (extents.rows == 0) return;
  auto* partials = reinterpret_cast<float*>(context.workspace);
  std::int64_t blocks = 0;
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const NormGradients<T> gradients{.dout = args.dout.as<T>(),
                                     .x = args.x.as<T>(),
                                     .weight = args.weight.as<T>(),
                                     .mean = args.mean.as<float>(),
                                     .rstd = args.rstd.as<float>(),
                                     .dx = args.dx.as<T>(),
                                     .out = args.out ? args.out.as<T>() : nullptr,
                                     .bias = args.out ? args.bias.as<T>() : nullptr,
                                     .partials = partials,
                                     .rows = extents.rows,
                                     .h = static_cast<int>(h)};
    blocks = args.dx_sum ? queue_gradients<T, true>(gradients, context)
                         : queue_gradients<T, false>(gradients, context);
  });
  PartialTargets targets{
      .width = h, .count = 2, .vectors = {args.dweight.as<float>(), args.dbias.as<float>()}};
  if (args.dx_sum) targets.vectors[targets.count++] = args.dx_sum.as<float>();
  add_partial_columns(partials, blocks, targets, context);
}

}  // namespace trireme::kernels::cuda
