// What linear layers of a few tokens compute, the same bits in every kernel: the norm of the input,
// the GEMM on tensor cores, and its epilogue.
#pragma once

#include <optional>

#include "core/error.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {

/// k is cut in steps of kLinearStep columns. Slice s of kLinearSlices has the steps s,
/// s + kLinearSlices, ...; the sums of the slices are added in the order of s. Of 16 bytes of a row
/// the words 0 and 2 have one sum in a slice, and the words 1 and 3 another.
inline constexpr int kLinearSlices = 16;
inline constexpr int kLinearStep = 64;

enum class DecodeEpilogue { none, gelu_tanh, gelu, tanh, silu };

inline DecodeEpilogue epilogue_of(const std::optional<Activation>& function) {
  if (!function) return DecodeEpilogue::none;
  switch (*function) {
    case Activation::gelu_tanh:
      return DecodeEpilogue::gelu_tanh;
    case Activation::gelu:
      return DecodeEpilogue::gelu;
    case Activation::tanh:
      return DecodeEpilogue::tanh;
    case Activation::silu:
      return DecodeEpilogue::silu;
  }
  throw InternalError("decode_linear: an unknown activation function");
}

template <typename T>
__device__ float apply(DecodeEpilogue function, float x) {
  switch (function) {
    case DecodeEpilogue::gelu_tanh:
      return Gelu<T>(x).value(x);
    case DecodeEpilogue::gelu:
      return ExactGelu<T>(x).value(x);
    case DecodeEpilogue::tanh:
      return tanhf(x);
    case DecodeEpilogue::silu:
      return x / (1.0f + exponential<T>(-x));
    case DecodeEpilogue::none:
      break;
  }
  return x;
}

/// The norm of the input; none without a weight.
template <typename T>
struct NormParameters {
  const T* weight;
  const T* bias;
  float eps;
  bool mean;  ///< whether it is subtracted
};

struct Statistics {
  float mean = 0.0f, rstd = 1.0f;
};

/// The statistics of a row x [columns], by one warp.
template <typename T, int kWidth>
__device__ Statistics statistics_of(const NormParameters<T>& norm, int columns, const T* x) {
  const int lane = threadIdx.x % 32;
  const auto reduce = [&](auto term) {
    float sum = 0.0f;
#pragma unroll 4
    for (int i = lane * kWidth; i < columns; i += 32 * kWidth) {
      const Values<kWidth> values = widen<T, kWidth>(load<kWidth>(x + i));
#pragma unroll
      for (int c = 0; c < kWidth; ++c) sum += term(values[c]);
    }
    return warp_sum(sum);
  };
  Statistics result;
  const auto k = static_cast<float>(columns);
  if (norm.mean) result.mean = reduce([](float v) { return v; }) / k;
  const float variance = reduce([&](float v) { return (v - result.mean) * (v - result.mean); }) / k;
  result.rstd = rsqrtf(variance + norm.eps);
  return result;
}

/// Statistics of rows of 16-bit elements: sums of kStatisticsClasses classes of steps, step s of
/// class s % kStatisticsClasses. Eight lanes have a class, each eight columns of a step.
inline constexpr int kStatisticsClasses = 32;

/// Sums of values less a shift, and of their squares.
struct ShiftedSums {
  float sum = 0.0f, squares = 0.0f;

  /// Adds those of a lane's eight columns of a step.
  __device__ __forceinline__ void add(const Values<8>& values, float shift) {
    float terms[8], products[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      terms[c] = __fsub_rn(values[c], shift);
      products[c] = __fmul_rn(terms[c], terms[c]);
    }
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2)
#pragma unroll
      for (int c = 0; c < distance; ++c) {
        terms[c] = __fadd_rn(terms[c], terms[c + distance]);
        products[c] = __fadd_rn(products[c], products[c + distance]);
      }
    sum = __fadd_rn(sum, terms[0]);
    squares = __fadd_rn(squares, products[0]);
  }
  /// Those of kLanes lanes, in each of them.
  template <int kLanes>
  __device__ __forceinline__ ShiftedSums over_lanes() const {
    ShiftedSums all = *this;
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      all.sum = __fadd_rn(all.sum, __shfl_xor_sync(~0u, all.sum, distance));
      all.squares = __fadd_rn(all.squares, __shfl_xor_sync(~0u, all.squares, distance));
    }
    return all;
  }
};

/// The statistics of a row of `columns` elements from its classes, of which lane i has class i.
__device__ __forceinline__ Statistics statistics_from(const ShiftedSums& own, int columns,
                                                      float shift, bool mean, float eps) {
  const ShiftedSums sums = own.over_lanes<kStatisticsClasses>();
  const float share = __frcp_rn(static_cast<float>(columns));
  const float off = mean ? __fmul_rn(sums.sum, share) : 0.0f;
  const float variance = fmaf(-off, off, __fmul_rn(sums.squares, share));
  return {__fadd_rn(shift, off), rsqrtf(__fadd_rn(fmaxf(variance, 0.0f), eps))};
}

/// The statistics of a row x [columns] of 16-bit elements, by one warp. Less the first element, so
/// that a mean far from zero costs no precision.
template <typename T>
__device__ Statistics half_statistics_of(const NormParameters<T>& norm, int columns, const T* x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float shift = norm.mean ? to_float(x[0]) : 0.0f;
  constexpr int kTogether = 32 * 8;  // columns: steps of four classes
  constexpr int kClasses = kStatisticsClasses / (kTogether / kLinearStep);  // of a lane
  ShiftedSums classes[kClasses], own;
  for (int begin = 0; begin < columns; begin += kClasses * kTogether)
#pragma unroll
    for (int j = 0; j < kClasses; ++j) {
      const int i = begin + j * kTogether + 8 * lane;
      if (i < columns) classes[j].add(widen<T, 8>(load<8>(x + i)), shift);
    }
#pragma unroll
  for (int j = 0; j < kClasses; ++j) {
    const ShiftedSums sums = classes[j].over_lanes<8>();
    const float sum = __shfl_sync(~0u, sums.sum, lane % 4 * 8);
    const float squares = __shfl_sync(~0u, sums.squares, lane % 4 * 8);
    if (lane / 4 == j) own = {sum, squares};
  }
  return statistics_from(own, columns, shift, norm.mean, norm.eps);
}

/// norm(x) of elements x, rounded to T, from the weight and the bias of their columns.
template <typename T, int kWidth>
__device__ __forceinline__ Elements<T, kWidth> normalize(const Elements<T, kWidth>& x,
                                                         const Elements<T, kWidth>& weights,
                                                         const Elements<T, kWidth>& biases,
                                                         const Statistics& statistics) {
  Values<kWidth> values = widen<T, kWidth>(x);
  const Values<kWidth> weight = widen<T, kWidth>(weights), bias = widen<T, kWidth>(biases);
#pragma unroll
  for (int c = 0; c < kWidth; ++c)
    values[c] =
        fmaf(__fmul_rn(__fsub_rn(values[c], statistics.mean), statistics.rstd), weight[c], bias[c]);
  return narrow<T>(values);
}

/// The same of columns i and following; x where there is no norm.
template <typename T, int kWidth>
__device__ __forceinline__ Elements<T, kWidth> normalize(const NormParameters<T>& norm,
                                                         const Elements<T, kWidth>& x, int i,
                                                         const Statistics& statistics) {
  if (!norm.weight) return x;
  Elements<T, kWidth> bias = {};
  if (norm.bias) bias = load<kWidth>(norm.bias + i);
  return normalize<T, kWidth>(x, load<kWidth>(norm.weight + i), bias, statistics);
}

/// What is done to the sums of an output.
struct Finish {
  bool bias, gated, residual;
  DecodeEpilogue function;
};

/// An output from its sum `first`, and `second` of the up half.
template <typename T>
__device__ __forceinline__ float finished(const Finish& how, float first, float second, float bias,
                                          float residual) {
  if (how.bias) first += bias;
  first = apply<T>(how.function, first);
  if (how.gated) first *= second;
  if (how.residual) first += residual;
  return first;
}

/// c += a b of one m16n8k16 instruction.
__device__ __forceinline__ void multiply(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1, __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace trireme::kernels::cuda
