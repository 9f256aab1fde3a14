#include <cuda_fp8.h>

#include <algorithm>

#include "core/philox.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kTile = 16;
constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocksY = 65535;

__device__ __forceinline__ float to_float(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_float(__nv_fp8_e5m2 x) { return static_cast<float>(x); }
using cuda::to_float;

// Element (row, column) of op(X) lies at row * row_step + column * column_step.
template <typename T>
struct Operand {
  const T* elements;
  std::int64_t row_step, column_step;
};

template <typename T>
Operand<T> operand(const Tensor& tensor, bool transpose, std::int64_t rows, std::int64_t columns) {
  const T* elements = static_cast<const T*>(tensor.data);
  return transpose ? Operand<T>{elements, 1, rows} : Operand<T>{elements, columns, 1};
}

// The scales of an FP8 operand; null for other types.
struct Scales {
  const float* scales;
  ScaleLayout layout;

  __device__ __forceinline__ float times(float code, std::int64_t row, std::int64_t i) const {
    return scales ? code * scales[layout.index(row, i)] : code;
  }
};

// Bound by shared memory: a block computes a tile of 16 x 16 of C, and reads each element of its
// tiles of A and B from there 16 times.
template <typename A, typename B, typename Bias, typename Result>
__global__ void __launch_bounds__(kTile* kTile)
    multiply_tiles(Operand<A> a, Operand<B> b, const Bias* bias, Result* c, std::int64_t m,
                   std::int64_t n, std::int64_t k, float beta, Scales scales_a, Scales scales_b) {
  __shared__ float tile_a[kTile][kTile + 1], tile_b[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile + x;
  for (std::int64_t top = std::int64_t{blockIdx.y} * kTile; top < m;
       top += std::int64_t{gridDim.y} * kTile) {
    const std::int64_t row = top + y;
    float sum = 0.0f;
    for (std::int64_t begin = 0; begin < k; begin += kTile) {
      tile_a[y][x] =
          row < m && begin + x < k
              ? scales_a.times(to_float(a.elements[row * a.row_step + (begin + x) * a.column_step]),
                               row, begin + x)
              : 0.0f;
      tile_b[y][x] =
          begin + y < k && column < n
              ? scales_b.times(
                    to_float(b.elements[(begin + y) * b.row_step + column * b.column_step]), column,
                    begin + y)
              : 0.0f;
      __syncthreads();
#pragma unroll
      for (int l = 0; l < kTile; ++l) sum = fmaf(tile_a[y][l], tile_b[l][x], sum);
      __syncthreads();
    }
    if (row >= m || column >= n) continue;
    Result* element = c + row * n + column;
    if (beta != 0.0f) sum += beta * to_float(*element);
    if (bias) sum += to_float(bias[column]);
    *element = from_float<Result>(sum);
  }
}

// Bound by bytes written.
template <typename T>
__global__ void __launch_bounds__(kThreads) fill(T* out, std::int64_t size, std::uint64_t seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += stride) {
    const Philox4 words =
        philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0}, seed);
    const float value = static_cast<float>(static_cast<std::int32_t>(words.x)) * 0x1p-31f;
    if constexpr (std::is_constructible_v<T, float> && sizeof(T) == 1)
      out[i] = T(value);
    else
      out[i] = from_float<T>(value);
  }
}

/// Calls function(T{}) with the CUDA type of an FP8 type.
template <typename Function>
void dispatch_fp8(DType dtype, const Function& function) {
  if (dtype == DType::float8_e4m3)
    function(__nv_fp8_e4m3{});
  else
    function(__nv_fp8_e5m2{});
}

template <typename A, typename B, typename Result>
void multiply(const Gemm& args, std::int64_t k, const Context& context) {
  const auto [m, n] = extents_of("gemm", "c", args.c);
  using Bias = std::conditional_t<sizeof(A) == 1, Result, A>;
  const dim3 blocks(static_cast<unsigned>((n + kTile - 1) / kTile),
                    static_cast<unsigned>(std::min((m + kTile - 1) / kTile, kMaxBlocksY)));
  multiply_tiles<<<blocks, dim3(kTile, kTile), 0, context.stream>>>(
      operand<A>(args.a, args.transpose_a, m, k), operand<B>(args.b, args.transpose_b, k, n),
      args.bias ? args.bias.as<Bias>() : nullptr, args.c.as<Result>(), m, n, k,
      static_cast<float>(args.beta), {args.a.scale, scale_layout(args.blocks_a, m, k)},
      {args.b.scale, scale_layout(args.blocks_b, n, k)});
  TRIREME_CUDA_LAUNCHED(multiply_tiles);
}

}  // namespace

void gemm_plain(const Gemm& args, const Context& context) {
  const auto [m, n] = extents_of("gemm", "c", args.c);
  const Extents stored = extents_of("gemm", "a", args.a);
  const std::int64_t k = args.transpose_a ? stored.rows : stored.columns;
  if (m == 0 || n == 0) return;
  if (is_fp8(args.a.dtype)) {
    check_fp8_gemm(args);
    return dispatch_fp8(args.a.dtype, [&](auto a) {
      dispatch_fp8(args.b.dtype, [&](auto b) {
        dispatch_cuda(args.c.dtype, [&](auto c) {
          multiply<decltype(a), decltype(b), decltype(c)>(args, k, context);
        });
      });
    });
  }
  dispatch_cuda(args.a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.c.dtype == args.a.dtype)
      multiply<T, T, T>(args, k, context);
    else
      multiply<T, T, float>(args, k, context);
  });
}

void fill_random(const Tensor& tensor, std::uint64_t seed, const Context& context) {
  const std::int64_t size = tensor.size();
  if (size == 0) return;
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    const auto blocks = static_cast<unsigned>(
        std::min<std::int64_t>((size + kThreads - 1) / kThreads, 32 * context.sms));
    fill<<<blocks, kThreads, 0, context.stream>>>(static_cast<T*>(tensor.data), size, seed);
    TRIREME_CUDA_LAUNCHED(fill);
  };
  if (is_fp8(tensor.dtype))
    dispatch_fp8(tensor.dtype, launch);
  else
    dispatch_cuda(tensor.dtype, launch);
}

}  // namespace trireme::kernels::cuda
