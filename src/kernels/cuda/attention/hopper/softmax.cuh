// The softmax of the rows that a warpgroup holds as accumulators of wgmma.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/mma.cuh"

namespace trireme::kernels::cuda {

/// What a thread knows of its two rows, 8 apart, so far: the largest score, and the sum of the
/// exponentials in its own columns.
struct RowPairSoftmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};

  /// Replaces scores by exp2(scale (score - largest)); `correction` is what results of earlier
  /// scores have to be multiplied by. The first scores of a row have to have one above -infinity.
  template <int kCount>
  __device__ __forceinline__ void update(float (&scores)[kCount], float scale,
                                         float (&correction)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Two chains for each result: an operation does not wait for the one before it.
      float most = largest[h], other_most = -INFINITY, other_sum = 0.0f;
#pragma unroll
      for (int e = 2 * h; e < kCount; e += 8) {
        most = fmaxf(most, fmaxf(scores[e], scores[e + 1]));
        other_most = fmaxf(other_most, fmaxf(scores[e + 4], scores[e + 5]));
      }
      most = fmaxf(most, other_most);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float offset = most * scale;
      correction[h] = exp2_approximate(fmaf(largest[h], scale, -offset));
      largest[h] = most;
      sum[h] *= correction[h];
#pragma unroll
      for (int e = 2 * h; e < kCount; e += 4) {
        scores[e] = exp2_approximate(fmaf(scores[e], scale, -offset));
        scores[e + 1] = exp2_approximate(fmaf(scores[e + 1], scale, -offset));
        sum[h] += scores[e];
        other_sum += scores[e + 1];
      }
      sum[h] += other_sum;
    }
  }

  /// The sum over all columns of row `h`.
  __device__ __forceinline__ float total(int h) const {
    float all = sum[h];
    all += __shfl_xor_sync(~0u, all, 1);
    return all + __shfl_xor_sync(~0u, all, 2);
  }
};

/// Multiplies a thread's accumulators, row by row.
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&c)[kCount], const float (&factors)[2]) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) c[e] *= factors[e / 2 % 2];
}

/// Accumulators, rounded to T, as operand A of steps of 16 columns.
template <typename T, int kSteps>
__device__ __forceinline__ void pack_rows(std::uint32_t (&a)[kSteps][4],
                                          const float (&c)[8 * kSteps]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = pack_pair<T>(c[8 * k + 2 * i], c[8 * k + 2 * i + 1]);
}

}  // namespace trireme::kernels::cuda
