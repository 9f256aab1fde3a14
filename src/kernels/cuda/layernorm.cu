// Layer and RMS norms forward and backward; bound by bytes. One kernel serves both kinds: what an
// RMS norm leaves out is instructions, not bytes.

#include "kernels/cuda/common/normalize.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/norms.hpp"

namespace trireme::kernels::cuda {
namespace {

template <typename T, int kWidth>
struct PlainRows {
  using Inputs = Elements<T, kWidth>;

  const T* x;
  int h;

  __device__ Inputs load(std::int64_t row, int column) const {
    return cuda::load<kWidth>(x + row * h + column);
  }
  __device__ Elements<T, kWidth> finish(std::int64_t, int, const Inputs& inputs) const {
    return inputs;
  }
};

}  // namespace

void layernorm_forward(const LayerNormForward& args, const Context& context) {
  const char* op = "layernorm_forward";
  const DType dtype = args.x.dtype;
  const Extents extents = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, extents);
  check_normalization(op, dtype, extents, args.kind, args.weight, args.bias, args.out, args.mean,
                      args.rstd);
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    const Normalization<T> norm = normalization<T>(args.kind, args.weight, args.bias, args.out,
                                                   args.mean, args.rstd, args.eps);
    const bool vectors = rows_aligned16<T>(extents.columns, x, norm.weight, norm.bias, norm.out);
    dispatch_width<T>(vectors, [&](auto width) {
      const PlainRows<T, width> rows{x, static_cast<int>(extents.columns)};
      launch_normalize<width>(rows, norm, extents, context);
    });
  });
}

namespace {

/// Sums over rows, of dweight, dbias, and dx, of the columns of a thread.
template <typename P>
using NormSums = Values<P::kWidth>[P::kSums][P::kGroups];

/// Writes the sums of a block, over its teams in order. The rows in shared memory are used up.
template <typename P>
__device__ void store_partials(const NormGradients<typename P::T>& args, const NormColumns<P>& own,
                               int team, const NormSums<P>& sums) {
  using Group = Elements<float, P::kWidth>;
  const int h = args.h, teams = blockDim.x / args.team_threads;
  auto* of_teams = reinterpret_cast<float*>(shared_memory());
#pragma unroll
  for (int s = 0; s < P::kSums; ++s) {
    __syncthreads();  // every thread is done with what was there: rows at first, then sums
#pragma unroll
    for (int g = 0; g < P::kGroups; ++g) {
      if (!own.has(g)) break;
      *reinterpret_cast<Group*>(of_teams + team * h + own.column(g)) = narrow<float>(sums[s][g]);
    }
    __syncthreads();
    float* partials = args.partials + (std::int64_t{blockIdx.x} * P::kSums + s) * h;
    for (int column = threadIdx.x; column < h; column += blockDim.x) {
      float sum = of_teams[column];
      for (int other = 1; other < teams; ++other) sum += of_teams[other * h + column];
      partials[column] = sum;
    }
  }
}

/// A team takes one row at a time.
template <typename P>
__global__ void __launch_bounds__(P::kBlockThreads, 1)
    norm_gradients(NormGradients<typename P::T> args) {
  using T = typename P::T;
  constexpr int kWidth = P::kWidth, kGroups = P::kGroups;
  constexpr bool kStaged = P::kStaged, kHoldsWeight = P::kHoldsWeight;
  __shared__ float sums_of_rows[2][P::kWarps][2];
  wait_for_previous_kernel();
  LargestMagnitude<T> largest(args.amax);
  const int h = args.h, team_threads = args.team_threads, teams = blockDim.x / team_threads;
  const int team = threadIdx.x / team_threads;
  const NormColumns<P> own{team_threads, static_cast<int>(threadIdx.x) - team * team_threads, h};
  const auto begin = static_cast<int>(args.rows * blockIdx.x / gridDim.x);
  const auto end = static_cast<int>(args.rows * (blockIdx.x + 1) / gridDim.x);

  StagedNormRows<P> staged(own);
  if constexpr (kStaged) {
    for (int stage = 0; stage < args.stages; ++stage)
      staged.prefetch(args, stage, begin + team + stage * teams, end);
  }
  const auto read_weight = [&](int g) { return load<kWidth>(args.weight + own.column(g)); };
  typename P::Group weights[kHoldsWeight ? kGroups : 1] = {};
  if constexpr (kHoldsWeight) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (own.has(g)) weights[g] = read_weight(g);
  }
  const auto weight_of = [&](int g) {
    return widen(kHoldsWeight ? weights[kHoldsWeight ? g : 0] : read_weight(g));
  };
  const bool has_mean = args.mean != nullptr;
  const auto mean_of = [&](int row) { return has_mean && row < end ? args.mean[row] : 0.0f; };
  const auto rstd_of = [&](int row) { return row < end ? args.rstd[row] : 0.0f; };

  NormSums<P> columns = {};
  float next_mean = mean_of(begin + team), next_rstd = rstd_of(begin + team);
  int stage = 0, turn = 0;
  for (int row = begin + team; row < end; row += teams, turn ^= 1) {
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

    // Sums over the row of dnorm = dout * weight and of dnorm * normalized x, through which the
    // statistics depend on x.
    float sums[2] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (!own.has(g)) break;
      const Values<kWidth> x = read(g, kX), dout = read(g, kDout), weight = weight_of(g);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float normalized = (x[i] - mean) * rstd, dnorm = dout[i] * weight[i];
        columns[0][g][i] += dout[i] * normalized;
        columns[1][g][i] += dout[i];
        sums[0] += dnorm;
        sums[1] += dnorm * normalized;
      }
    }
    team_sums(sums, team, team_threads, sums_of_rows[turn]);
    const float dnorm_mean = has_mean ? sums[0] / static_cast<float>(h) : 0.0f;
    const float dnorm_norm_mean = sums[1] / static_cast<float>(h);

    // dx += rstd * (dnorm - dnorm_mean - normalized * dnorm_norm_mean)
    const float slope = -dnorm_norm_mean * rstd * rstd, offset = -dnorm_mean * rstd;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (!own.has(g)) break;
      const Values<kWidth> x = read(g, kX), dout = read(g, kDout), weight = weight_of(g);
      Values<kWidth> dx = read(g, kDx);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dx[i] += dout[i] * weight[i] * rstd + ((x[i] - mean) * slope + offset);
        if constexpr (P::kSumsDx) columns[2][g][i] += dx[i];
      }
      const std::int64_t place = std::int64_t{row} * h + own.column(g);
      const Elements<T, kWidth> rounded = narrow<T>(dx);
      largest.take(rounded);
      store(args.dx + place, rounded);
      if (args.out == nullptr) continue;
      const Values<kWidth> bias =
          args.bias != nullptr ? widen(load<kWidth>(args.bias + own.column(g))) : Values<kWidth>{};
      Values<kWidth> out;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[i] = normalized(x[i], mean, rstd, weight[i], bias[i]);
      store(args.out + place, narrow<T>(out));
    }
    if constexpr (kStaged) {
      staged.prefetch(args, stage, row + args.stages * teams, end);
      stage = stage + 1 == args.stages ? 0 : stage + 1;
    }
  }
  largest.raise();
  store_partials<P>(args, own, team, columns);
}

/// Threads of a team when each takes at most `columns` columns, at most `most`.
int team_threads_for(std::int64_t h, int columns, int most) {
  return static_cast<int>(
      std::min<std::int64_t>((h + 32 * columns - 1) / (32 * columns) * 32, most));
}

/// Rows that a team can have in the shared memory of a block.
template <typename P>
int stages_of(const Context& context) {
  const int bytes = context.shared_memory_bytes - static_cast<int>(sizeof(float[2][P::kWarps][2]));
  return std::min(kMaxNormStages, bytes / P::kStageBytes);
}

/// Enqueues norm_gradients; returns the number of its blocks.
template <typename P>
std::int64_t launch_gradients(NormGradients<typename P::T> args, const Context& context) {
  if constexpr (P::kStaged) args.stages = stages_of<P>(context);
  const int teams = P::kBlockThreads / args.team_threads;
  const int of_teams = teams * args.h * static_cast<int>(sizeof(float));
  const int shared = std::max(args.stages * P::kStageBytes, of_teams);
  // Beyond 48 KiB, what the kernel declares counted in, a launch has to opt in.
  if (shared > 40 << 10)
    TRIREME_CUDA(cudaFuncSetAttribute(norm_gradients<P>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const std::int64_t needed = (args.rows + teams - 1) / teams;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>({needed, context.sms, kMaxNormBlocks}));
  launch_dependent(norm_gradients<P>, blocks, teams * args.team_threads, shared, context, args);
  TRIREME_CUDA_LAUNCHED(norm_gradients);
  return blocks;
}

/// Chooses how to work on rows of this width, and enqueues norm_gradients.
template <typename T, bool kSumsDx>
std::int64_t enqueue_gradients(NormGradients<T> args, const Context& context) {
  constexpr int kWidth = 16 / sizeof(T), kThreads = kNormThreads<kSumsDx>;
  using Usual = NormPlan<T, kWidth, kNormGroups, kThreads, kSumsDx>;
  using Wide = NormPlan<T, kWidth, kWideNormColumns / kWidth, kWideNormThreads, kSumsDx>;
  using Scalar = NormPlan<T, 1, kWideNormColumns, kWideNormThreads, kSumsDx>;
  const bool vectors =
      rows_aligned16<T>(args.h, args.dout, args.x, args.weight, args.dx, args.out, args.bias);
  if (vectors && args.h <= kThreads * kNormGroups * kWidth) {
    args.team_threads = team_threads_for(args.h, kNormGroups * kWidth, kThreads);
    return launch_gradients<Usual>(args, context);
  }
  args.team_threads = team_threads_for(args.h, kWideNormColumns, kWideNormThreads);
  if (vectors && stages_of<Wide>(context) > 0) return launch_gradients<Wide>(args, context);
  return launch_gradients<Scalar>(args, context);
}

}  // namespace

void layernorm_backward(const LayerNormBackward& args, const Context& context) {
  const char* op = "layernorm_backward";
  const DType dtype = args.x.dtype;
  const Extents extents = extents_of(op, "x", args.x);
  const std::int64_t h = extents.columns;
  check_matrix(op, "x", args.x, dtype, extents);
  check_matrix(op, "dout", args.dout, dtype, extents);
  check_normalization(op, dtype, extents, args.kind, args.weight, args.weight, args.dx, args.mean,
                      args.rstd);
  const bool layer = args.kind == NormKind::layer;
  check_vector(op, "dweight", args.dweight, DType::f32, h);
  if (layer) check_vector(op, "dbias", args.dbias, DType::f32, h);
  if (args.dx_sum) check_vector(op, "dx_sum", args.dx_sum, DType::f32, h);
  if (args.out) {
    check_matrix(op, "out", args.out, dtype, extents);
    if (layer) check_vector(op, "bias", args.bias, dtype, h);
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
                                     .mean = layer ? args.mean.as<float>() : nullptr,
                                     .rstd = args.rstd.as<float>(),
                                     .dx = args.dx.as<T>(),
                                     .out = args.out ? args.out.as<T>() : nullptr,
                                     .bias = args.out && layer ? args.bias.as<T>() : nullptr,
                                     .partials = partials,
                                     .amax = args.dx.amax,
                                     .rows = extents.rows,
                                     .h = static_cast<int>(h)};
    blocks = args.dx_sum ? enqueue_gradients<T, true>(gradients, context)
                         : enqueue_gradients<T, false>(gradients, context);
  });
  PartialTargets targets{
      .width = h,
      .count = 2,
      .vectors = {args.dweight.as<float>(), layer ? args.dbias.as<float>() : nullptr}};
  if (args.dx_sum) targets.vectors[targets.count++] = args.dx_sum.as<float>();
  add_partial_columns(partials, blocks, targets, context);
}

}  // namespace trireme::kernels::cuda
