// Elementary functions that vectorise, and sums in double.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/host/compute.hpp"

namespace trireme::kernels::host {

/// e^x in float: relative error below 1.5e-7 where the result is a normal number, 0 below -104,
/// infinity above 88.73, exact at 0 and -infinity, NaN for NaN. Without branches or calls, so that
/// loops over it become vector code. Cody-Waite reduction x = n ln 2 + r, then a polynomial in r.
inline float exponential(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = x - n * kLn2High - n * kLn2Low;
  // Minimax coefficients of Cephes' expf (Moshier) for e^r = 1 + r + r^2 p(r), |r| <= ln(2) / 2.
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, since n runs from -150 to 128 and one exponent field does not.
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u + 254u;
  const std::uint32_t half = exponent >> 1;
  const float low = std::bit_cast<float>(half << 23);
  const float high = std::bit_cast<float>((exponent - half) << 23);
  return p * low * high;
}

/// e^x in double, by the standard library.
inline double exponential(double x) { return std::exp(x); }

/// Sum of f(i) for i in [0, n), accumulated in double in an order that only n fixes: element i goes
/// to one of 16 partial sums by i mod 16, which hides the latency of an addition.
template <typename F>
inline double sum_of(std::int64_t n, const F& f) {
  constexpr std::int64_t kLanes = 16;
  double lanes[kLanes] = {};
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += static_cast<double>(f(i + lane));
  }
  for (std::int64_t i = whole; i < n; ++i) lanes[i - whole] += static_cast<double>(f(i));
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// The largest of x[0 .. n - 1]; -infinity when n is 0.
template <typename T>
inline T largest_of(const T* x, std::int64_t n) {
  T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// Columns that one task of a sum over rows takes: a few cache lines of each row.
inline constexpr std::int64_t kColumnBlock = 64;

/// Adds the sum over t in [0, rows) of element(t, i) to out[i], i in [0, columns). Each column is
/// summed in double in the order of its rows, so the number of threads does not matter.
template <typename T, typename Element>
void add_column_sums(std::int64_t rows, std::int64_t columns, T* out, const Element& element) {
  parallel_blocks(columns, kColumnBlock, [&](std::int64_t begin, std::int64_t end) {
    std::array<double, kColumnBlock> sums{};
    for (std::int64_t t = 0; t < rows; ++t) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) sums[i - begin] += element(t, i);
    }
    for (std::int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(out[i] + sums[i - begin]);
  });
}

}  // namespace trireme::kernels::host
