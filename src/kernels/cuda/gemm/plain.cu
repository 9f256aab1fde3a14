#include <algorithm>

#include "core/philox.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/gemm/plain.hpp"
#include "kernels/cuda/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kTile = 16;
constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocksY = 65535;

// Element (row, column) of op(X) lies at row * row_step + column * column_step.
template <typename T>
struct Operand {
  const T* elements;
  std::int64_t row_step, column_step;
};

template <typename T>
Operand<T> operand(const Tensor& tensor, bool transpose, std::int64_t rows, std::int64_t columns) {
  return transpose ? Operand<T>{tensor.as<T>(), 1, rows} : Operand<T>{tensor.as<T>(), columns, 1};
}

// Bound by shared memory: a block computes a tile of 16 x 16 of C, and reads each element of its
// tiles of A and B from there 16 times.
template <typename T, typename Result>
__global__ void __launch_bounds__(kTile* kTile)
    multiply_tiles(Operand<T> a, Operand<T> b, const T* bias, Result* c, std::int64_t m,
                   std::int64_t n, std::int64_t k, float beta) {
  __shared__ float tile_a[kTile][kTile + 1], tile_b[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile + x;
  for (std::int64_t top = std::int64_t{blockIdx.y} * kTile; top < m;
       top += std::int64_t{gridDim.y} * kTile) {
    const std::int64_t row = top + y;
    float sum = 0.0f;
    for (std::int64_t begin = 0; begin < k; begin += kTile) {
      tile_a[y][x] = row < m && begin + x < k
                         ? to_float(a.elements[row * a.row_step + (begin + x) * a.column_step])
                         : 0.0f;
      tile_b[y][x] = begin + y < k && column < n
                         ? to_float(b.elements[(begin + y) * b.row_step + column * b.column_step])
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
    out[i] = from_float<T>(static_cast<float>(static_cast<std::int32_t>(words.x)) * 0x1p-31f);
  }
}

}  // namespace

void gemm_plain(const Gemm& args, const Context& context) {
  const auto [m, n] = extents_of("gemm", "c", args.c);
  const Extents stored = extents_of("gemm", "a", args.a);
  const std::int64_t k = args.transpose_a ? stored.rows : stored.columns;
  if (m == 0 || n == 0) return;
  dispatch_cuda(args.a.dtype, [&, m = m, n = n](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto* c) {
      const dim3 blocks(static_cast<unsigned>((n + kTile - 1) / kTile),
                        static_cast<unsigned>(std::min((m + kTile - 1) / kTile, kMaxBlocksY)));
      multiply_tiles<<<blocks, dim3(kTile, kTile), 0, context.stream>>>(
          operand<T>(args.a, args.transpose_a, m, k), operand<T>(args.b, args.transpose_b, k, n),
          args.bias ? args.bias.as<T>() : nullptr, c, m, n, k, static_cast<float>(args.beta));
      TRIREME_CUDA_LAUNCHED(multiply_tiles);
    };
    if (args.c.dtype == args.a.dtype)
      launch(args.c.as<T>());
    else
      launch(args.c.as<float>());
  });
}

void fill_random(const Tensor& tensor, std::uint64_t seed, const Context& context) {
  const std::int64_t size = tensor.size();
  if (size == 0) return;
  dispatch_cuda(tensor.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks = static_cast<unsigned>(
        std::min<std::int64_t>((size + kThreads - 1) / kThreads, 32 * context.sms));
    fill<<<blocks, kThreads, 0, context.stream>>>(tensor.as<T>(), size, seed);
    TRIREME_CUDA_LAUNCHED(fill);
  });
}

}  // namespace trireme::kernels::cuda
