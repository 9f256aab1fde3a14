// What a block does with one row of the logits: the largest one and the sum relative to it, kept
// together and merged over threads, and the gradient over what they were made of.
#pragma once

#include <limits>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"

namespace trireme::kernels::cuda {

/// Loads of a thread under way.
constexpr int kLogitsUnroll = 4;

__device__ constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// The largest of the values so far, and the sum of exp(value - max). T tells how exact.
template <typename T>
struct OnlineSum {
  float max = kNothing;
  float sum = 0.0f;

  template <int kWidth>
  __device__ void add(const Values<kWidth>& values) {
    float largest = values[0];
#pragma unroll
    for (int i = 1; i < kWidth; ++i) largest = fmaxf(largest, values[i]);
    if (largest > max) {
      sum *= exponential<T>(max - largest);
      max = largest;
    }
    const float center = max == kNothing ? 0.0f : max;  // not -infinity - -infinity
    Values<kWidth> terms;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) terms[i] = exponential<T>(values[i] - center);
      // A tree: eight additions one after the other would be waited for.
#pragma unroll
    for (int step = 1; step < kWidth; step *= 2) {
#pragma unroll
      for (int i = 0; i < kWidth; i += 2 * step) terms[i] += terms[i + step];
    }
    sum += terms[0];
  }

  __device__ void merge(const OnlineSum& other) {
    const float largest = fmaxf(max, other.max);
    if (largest != kNothing)
      sum = sum * exponential<T>(max - largest) + other.sum * exponential<T>(other.max - largest);
    else
      sum += other.sum;
    max = largest;
  }
};

/// Rows of logits, of which this rank has a shard of the columns.
template <typename T>
struct LogitsRows {
  T* logits;
  const std::int32_t* labels;
  std::int64_t stride;  // stored columns of a row
  std::int64_t first_column;
  std::int64_t columns;

  /// The label of `row` as one of this shard's columns, or -1.
  __device__ std::int64_t own_label(std::int64_t row) const {
    const std::int64_t column = labels[row] - first_column;
    return labels[row] >= 0 && column >= 0 && column < columns ? column : -1;
  }
};

/// What the warps of a block of kBlock threads tell each other of a row.
template <int kBlock>
struct WarpSums {
  float max[kBlock / 32], sum[kBlock / 32];
};

/// Merges what the threads of a block of kBlock know of a row, in every one of them.
template <int kBlock, typename T>
__device__ void merge_threads(OnlineSum<T>& total, WarpSums<kBlock>& warps) {
  const auto merge_lanes = [&](int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      OnlineSum<T> other;
      other.max = __shfl_xor_sync(0xFFFFFFFFu, total.max, distance);
      other.sum = __shfl_xor_sync(0xFFFFFFFFu, total.sum, distance);
      total.merge(other);
    }
  };
  constexpr int kWarps = kBlock / 32;
  merge_lanes(32);
  if (threadIdx.x % 32 == 0) {
    warps.max[threadIdx.x / 32] = total.max;
    warps.sum[threadIdx.x / 32] = total.sum;
  }
  __syncthreads();
  total.max = warps.max[threadIdx.x % kWarps];
  total.sum = warps.sum[threadIdx.x % kWarps];
  merge_lanes(kWarps);
}

/// The statistics of one row, in every thread of a block of kBlock.
template <int kWidth, int kBlock, typename T>
__device__ OnlineSum<T> row_total(const T* logits, std::int64_t columns) {
  OnlineSum<T> total;
  const std::int64_t groups = columns / kWidth;
  for (std::int64_t first = threadIdx.x; first < groups; first += kBlock * kLogitsUnroll) {
    Elements<T, kWidth> elements[kLogitsUnroll];
#pragma unroll
    for (int u = 0; u < kLogitsUnroll; ++u)
      if (first + u * kBlock < groups)
        elements[u] = load<kWidth>(logits + (first + u * kBlock) * kWidth);
#pragma unroll
    for (int u = 0; u < kLogitsUnroll; ++u)
      if (first + u * kBlock < groups) total.add(widen(elements[u]));
  }
  if (groups * kWidth + threadIdx.x < columns)
    total.add(widen(load<1>(logits + groups * kWidth + threadIdx.x)));
  __shared__ WarpSums<kBlock> warps;
  merge_threads(total, warps);
  return total;
}

/// Turns the logits of group `group` of a row into gradients; `rest` of them are columns, and
/// `label` is one of the shard's columns or -1.
template <typename T, int kWidth>
__device__ __forceinline__ void to_gradient(Values<kWidth>& values, std::int64_t group,
                                            std::int64_t columns, std::int64_t label, float largest,
                                            float factor, float scale) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = exponential<T>(values[i] - largest) * factor;
  // Few groups hold the label or padding.
  const auto rest = static_cast<int>(min(columns - group * kWidth, std::int64_t{kWidth}));
  const std::int64_t here = label - group * kWidth;
  if (rest < kWidth || (here >= 0 && here < kWidth)) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      values[i] = i < rest ? values[i] - (i == here ? scale : 0.0f) : 0.0f;
  }
}

/// Writes the gradient of one row over its logits; `label` is one of the shard's columns or -1.
template <int kWidth, int kBlock, typename T>
__device__ void write_gradient(T* logits, std::int64_t columns, std::int64_t stride,
                               std::int64_t label, float largest, float factor, float scale) {
  const std::int64_t groups = stride / kWidth;
  for (std::int64_t first = threadIdx.x; first < groups; first += kBlock * kLogitsUnroll) {
    Elements<T, kWidth> elements[kLogitsUnroll] = {};
#pragma unroll
    for (int u = 0; u < kLogitsUnroll; ++u) {
      const std::int64_t column = (first + u * kBlock) * kWidth;
      if (column < columns) elements[u] = load<kWidth>(logits + column);
    }
#pragma unroll
    for (int u = 0; u < kLogitsUnroll; ++u) {
      const std::int64_t group = first + u * kBlock;
      if (group >= groups) break;
      Values<kWidth> values = widen(elements[u]);
      to_gradient<T>(values, group, columns, label, largest, factor, scale);
      store(logits + group * kWidth, narrow<T>(values));
    }
  }
}

}  // namespace trireme::kernels::cuda
