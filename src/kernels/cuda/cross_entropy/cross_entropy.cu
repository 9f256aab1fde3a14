// One block a row of the logits. Bound by bytes: the statistics read each logit once (2 bytes in
// half precision: the largest logit so far and the sum relative to it are kept together), the
// backward pass reads and writes it once, in place; both together do no more: a row waits in shared
// memory, while the next one comes, or, where two do not fit, in the L2 cache. The loss is a
// sum over tokens alone.
#include "kernels/vocabulary.hpp"

#include <cstdio>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/cross_entropy/logits_rows.cuh"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Where the statistics of the rows go.
struct Statistics {
  float* max;
  float* sum;
  float* target;

  template <typename T>
  __device__ void write(std::int64_t row, const OnlineSum<T>& total, float at_label) const {
    max[row] = total.max;
    sum[row] = total.sum;
    target[row] = at_label;
  }
};

/// What softmax times of a row is the gradient of loss and z-loss: scale (1 + 2 z_loss lse) / sum.
struct LossScale {
  float scale, z_loss;

  __device__ float factor(float max, float sum) const {
    if (z_loss == 0.0f) return scale / sum;
    return scale * (1.0f + 2.0f * z_loss * (logf(sum) + max)) / sum;
  }
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    row_statistics(LogitsRows<T> rows, Statistics statistics) {
  const std::int64_t row = blockIdx.x;
  const T* logits = rows.logits + row * rows.stride;
  const OnlineSum<T> total = row_total<kWidth, kThreads>(logits, rows.columns);
  if (threadIdx.x != 0) return;
  const std::int64_t label = rows.own_label(row);
  statistics.write(row, total, label >= 0 ? to_float(logits[label]) : 0.0f);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    logit_gradients(LogitsRows<T> rows, const float* max, const float* sum, LossScale loss) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t columns = rows.labels[row] >= 0 ? rows.columns : 0;
  write_gradient<kWidth, kThreads>(rows.logits + row * rows.stride, columns, rows.stride,
                                   rows.own_label(row), max[row], loss.factor(max[row], sum[row]),
                                   loss.scale);
}

// Few, large blocks: the rows at work stay in the L2 cache until they are read again.
constexpr int kFusedThreads = 1024;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kFusedThreads, 1)
    row_statistics_and_gradient(LogitsRows<T> rows, Statistics statistics, LossScale loss) {
  const std::int64_t row = blockIdx.x;
  T* logits = rows.logits + row * rows.stride;
  const std::int64_t label = rows.own_label(row);
  const float at_label = label >= 0 ? to_float(logits[label]) : 0.0f;
  const OnlineSum<T> total = row_total<kWidth, kFusedThreads>(logits, rows.columns);
  __syncthreads();  // all have read the label's logit before one overwrites it
  if (threadIdx.x == 0) statistics.write(row, total, at_label);
  write_gradient<kWidth, kFusedThreads>(logits, rows.labels[row] >= 0 ? rows.columns : 0,
                                        rows.stride, label, total.max,
                                        loss.factor(total.max, total.sum), loss.scale);
}

/// The same for rows of which two fit into shared memory. Blocks stay and take every so many
/// rows; while they work on one the next comes. A thread copies and reads its own groups only.
template <typename T>
__global__ void __launch_bounds__(kFusedThreads, 1)
    staged_statistics_and_gradient(LogitsRows<T> rows, Statistics statistics, LossScale loss,
                                   std::int64_t count) {
  constexpr int kWidth = 16 / sizeof(T);
  using Group = Elements<T, kWidth>;
  __shared__ WarpSums<kFusedThreads> warps[2];
  const int groups = static_cast<int>(rows.stride / kWidth);
  const auto staged = [&](int stage) {
    return reinterpret_cast<Group*>(shared_memory()) + stage * groups;
  };
  const auto ask = [&](std::int64_t row, int stage) {
    if (row < count)
      for (int group = threadIdx.x; group < groups; group += kFusedThreads)
        copy_async<16>(staged(stage) + group, rows.logits + row * rows.stride + group * kWidth,
                       true);
    commit_copies();
  };

  int stage = 0;
  ask(blockIdx.x, 0);
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x, stage ^= 1) {
    ask(row + gridDim.x, stage ^ 1);
    const bool counts = rows.labels[row] >= 0;
    const std::int64_t label = rows.own_label(row);
    wait_copies<1>();
    Group* const logits = staged(stage);
    OnlineSum<T> total;
#pragma unroll 4
    for (int group = threadIdx.x; group < groups; group += kFusedThreads) {
      Values<kWidth> values = widen(logits[group]);
      const std::int64_t rest = rows.columns - std::int64_t{group} * kWidth;
      if (rest < kWidth) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] = i < rest ? values[i] : kNothing;
      }
      total.add(values);
    }
    merge_threads(total, warps[stage]);

    if (threadIdx.x == (label < 0 ? 0 : label / kWidth % kFusedThreads))
      statistics.write(row, total,
                       label < 0 ? 0.0f : to_float(reinterpret_cast<const T*>(logits)[label]));
    T* const out = rows.logits + row * rows.stride;
    const std::int64_t columns = counts ? rows.columns : 0;
    const float factor = loss.factor(total.max, total.sum);
#pragma unroll 4
    for (int group = threadIdx.x; group < groups; group += kFusedThreads) {
      Values<kWidth> values = widen(logits[group]);
      to_gradient<T>(values, group, columns, label, total.max, factor, loss.scale);
      store(out + std::int64_t{group} * kWidth, narrow<T>(values));
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    rescale_sums(const float* local_max, const float* max, float* sum, std::int64_t rows) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  // A shard without columns, or with -infinity alone, adds nothing.
  if (t < rows) sum[t] = local_max[t] == kNothing ? 0.0f : sum[t] * expf(local_max[t] - max[t]);
}

/// *place = max(*place, value), for any number of threads: the order does not change a maximum.
__device__ void raise(double* place, double value) {
  auto* bits = reinterpret_cast<unsigned long long*>(place);
  unsigned long long seen = *bits;
  while (value > __longlong_as_double(static_cast<long long>(seen))) {
    const auto wanted = static_cast<unsigned long long>(__double_as_longlong(value));
    const unsigned long long found = atomicCAS(bits, seen, wanted);
    if (found == seen) return;
    seen = found;
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_losses(const std::int32_t* labels, const float* max, const float* sum, const float* target,
               std::int64_t rows, double* partials, double* largest) {
  double loss = 0.0;
  float highest = kNothing;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t t = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; t < rows; t += stride)
    if (labels[t] >= 0) {
      loss += log(static_cast<double>(sum[t])) + static_cast<double>(max[t]) -
              static_cast<double>(target[t]);
      highest = fmaxf(highest, max[t]);
    }
  loss = block_sum<kThreads>(loss);
  if (threadIdx.x == 0) partials[blockIdx.x] = loss;
  if (largest == nullptr) return;
  for (int distance = 16; distance > 0; distance /= 2)
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFu, highest, distance));
  if (threadIdx.x % 32 == 0) raise(largest, static_cast<double>(highest));
}

/// Rows and stored columns of the logits, after checking that the shard's columns fit.
Extents check_logits(const char* op, const Tensor& logits, std::int64_t columns) {
  const Extents extents = extents_of(op, "logits", logits);
  check_matrix(op, "logits", logits, logits.dtype, extents);
  TRIREME_CHECK(columns >= 0 && columns <= extents.columns, "{}: {} columns of {} stored ones", op,
                columns, extents.columns);
  return extents;
}

void check_labels(const char* op, const std::int32_t* labels, std::int64_t rows) {
  TRIREME_CHECK(labels != nullptr || rows == 0, "{}: labels has no memory", op);
}

/// Rows and stored columns of the logits, after checking all that the statistics are made of.
Extents check_statistics(const char* op, const CrossEntropyStatistics& args) {
  const Extents extents = check_logits(op, args.logits, args.columns);
  check_labels(op, args.labels, extents.rows);
  check_vector(op, "max", args.max, DType::f32, extents.rows);
  check_vector(op, "sum", args.sum, DType::f32, extents.rows);
  check_vector(op, "target", args.target, DType::f32, extents.rows);
  return extents;
}

Statistics statistics_of(const CrossEntropyStatistics& args) {
  return {args.max.as<float>(), args.sum.as<float>(), args.target.as<float>()};
}

template <typename T, typename Args>
LogitsRows<T> rows_of(const Args& args, const Extents& extents) {
  return {args.logits.template as<T>(), args.labels, extents.columns, args.first_column,
          args.columns};
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatistics& args, const Context& context) {
  const char* op = "cross_entropy_statistics";
  const Extents extents = check_statistics(op, args);
  if (extents.rows == 0) return;
  dispatch_cuda(args.logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto rows = rows_of<T>(args, extents);
    dispatch_width<T>(rows_aligned16<T>(rows.stride, rows.logits), [&](auto width) {
      row_statistics<T, width>
          <<<static_cast<unsigned>(extents.rows), kThreads, 0, context.stream>>>(
              rows, statistics_of(args));
      TRIREME_CUDA_LAUNCHED(row_statistics);
    });
  });
}

void cross_entropy_statistics_backward(const CrossEntropyStatisticsBackward& both,
                                       const Context& context) {
  const char* op = "cross_entropy_statistics_backward";
  const CrossEntropyStatistics& args = both.statistics;
  const Extents extents = check_statistics(op, args);
  if (extents.rows == 0) return;
  dispatch_cuda(args.logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto rows = rows_of<T>(args, extents);
    const Statistics statistics = statistics_of(args);
    const LossScale scale{static_cast<float>(both.scale), static_cast<float>(both.z_loss)};
    const bool aligned = rows_aligned16<T>(rows.stride, rows.logits);
    const std::int64_t two_rows = 2 * rows.stride * std::int64_t{sizeof(T)};
    if (aligned && two_rows + std::int64_t{sizeof(WarpSums<kFusedThreads>[2])} <=
                       context.shared_memory_bytes) {
      const auto shared = static_cast<int>(two_rows);
      TRIREME_CUDA(cudaFuncSetAttribute(staged_statistics_and_gradient<T>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
      const auto blocks =
          static_cast<unsigned>(std::min<std::int64_t>(extents.rows, std::int64_t{context.sms}));
      staged_statistics_and_gradient<T><<<blocks, kFusedThreads, shared, context.stream>>>(
          rows, statistics, scale, extents.rows);
      TRIREME_CUDA_LAUNCHED(staged_statistics_and_gradient);
      return;
    }
    dispatch_width<T>(aligned, [&](auto width) {
      row_statistics_and_gradient<T, width>
          <<<static_cast<unsigned>(extents.rows), kFusedThreads, 0, context.stream>>>(
              rows, statistics, scale);
      TRIREME_CUDA_LAUNCHED(row_statistics_and_gradient);
    });
  });
}

void cross_entropy_rescale(const CrossEntropyRescale& args, const Context& context) {
  const char* op = "cross_entropy_rescale";
  const std::int64_t rows = args.max.size();
  check_vector(op, "local_max", args.local_max, DType::f32, rows);
  check_vector(op, "max", args.max, DType::f32, rows);
  check_vector(op, "sum", args.sum, DType::f32, rows);
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  rescale_sums<<<blocks, kThreads, 0, context.stream>>>(
      args.local_max.as<float>(), args.max.as<float>(), args.sum.as<float>(), rows);
  TRIREME_CUDA_LAUNCHED(rescale_sums);
}

void cross_entropy_loss(const CrossEntropyLoss& args, const Context& context) {
  const char* op = "cross_entropy_loss";
  const std::int64_t rows = args.max.size();
  check_labels(op, args.labels, rows);
  check_vector(op, "max", args.max, DType::f32, rows);
  check_vector(op, "sum", args.sum, DType::f32, rows);
  check_vector(op, "target", args.target, DType::f32, rows);
  check_vector(op, "loss", args.loss, DType::f64, 1);
  if (args.largest) check_vector(op, "largest", args.largest, DType::f64, 1);
  check_workspace(op, context, cross_entropy_loss_workspace());
  if (rows == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((rows + kThreads - 1) / kThreads, kSumBlocks));
  auto* partials = reinterpret_cast<double*>(context.workspace);
  sum_losses<<<blocks, kThreads, 0, context.stream>>>(
      args.labels, args.max.as<float>(), args.sum.as<float>(), args.target.as<float>(), rows,
      partials, args.largest ? args.largest.as<double>() : nullptr);
  TRIREME_CUDA_LAUNCHED(sum_losses);
  add_partial_sum(partials, static_cast<int>(blocks), args.loss.as<double>(), context);
}

void cross_entropy_backward(const CrossEntropyBackward& args, const Context& context) {
  const char* op = "cross_entropy_backward";
  const Extents extents = check_logits(op, args.logits, args.columns);
  check_labels(op, args.labels, extents.rows);
  check_vector(op, "max", args.max, DType::f32, extents.rows);
  check_vector(op, "sum", args.sum, DType::f32, extents.rows);
  if (extents.rows == 0) return;
  dispatch_cuda(args.logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto rows = rows_of<T>(args, extents);
    dispatch_width<T>(rows_aligned16<T>(rows.stride, rows.logits), [&](auto width) {
      logit_gradients<T, width>
          <<<static_cast<unsigned>(extents.rows), kThreads, 0, context.stream>>>(
              rows, args.max.as<float>(), args.sum.as<float>(),
              LossScale{static_cast<float>(args.scale), static_cast<float>(args.z_loss)});
      TRIREME_CUDA_LAUNCHED(logit_gradients);
    });
  });
}

// ---- select_labels: one block, a few microseconds of latency for the labels of a micro-batch

namespace {

constexpr int kLabelThreads = 1024, kLabelWarps = kLabelThreads / 32;

/// Each round places the labels of kLabelThreads tokens behind those before them.
__global__ void __launch_bounds__(kLabelThreads) place_labels(const SelectLabels args) {
  __shared__ int counts[2][kLabelWarps];  // of a round's warps: the other round's may still be read
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int64_t before = 0;
  for (std::int64_t begin = 0, round = 0; begin < args.tokens; begin += kLabelThreads, ++round) {
    const std::int64_t t = begin + threadIdx.x;
    const std::int32_t label = t < args.tokens ? args.labels[t] : -1;
    const unsigned counting = __ballot_sync(~0u, label >= 0);
    if (lane == 0) counts[round % 2][warp] = __popc(counting);
    __syncthreads();
    // Every warp sums the counts of all: those of the warps before it, and of the round.
    const int count = counts[round % 2][lane];
    int sum = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    const int of_earlier_warps = __shfl_sync(~0u, sum - count, warp);
    const std::int64_t i = before + of_earlier_warps + __popc(counting & ((1u << lane) - 1));
    before += __shfl_sync(~0u, sum, 31);
    if (t < args.tokens) args.places[t] = label >= 0 ? static_cast<std::int32_t>(i) : -1;
    if (label >= 0 && i < args.capacity) {
      args.rows[i] = static_cast<std::int32_t>(t);
      args.selected[i] = label;
    }
  }
  if (before > args.capacity) {
    if (threadIdx.x == 0)
      printf("select_labels: %lld tokens have labels, expected %lld at most\n",
             static_cast<long long>(before), static_cast<long long>(args.capacity));
    __trap();
  }
  for (std::int64_t i = before + threadIdx.x; i < args.capacity; i += kLabelThreads)
    args.rows[i] = args.selected[i] = -1;
}
static_assert(kLabelWarps == 32, "a lane for each warp");

}  // namespace

void select_labels(const SelectLabels& args, const Context& context) {
  TRIREME_CHECK(args.labels && args.places && args.rows && args.selected,
                "select_labels: something has no memory");
  place_labels<<<1, kLabelThreads, 0, context.stream>>>(args);
  TRIREME_CUDA_LAUNCHED(place_labels);
}

}  // namespace trireme::kernels::cuda
