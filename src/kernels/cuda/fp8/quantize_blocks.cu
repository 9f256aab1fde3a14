// Bound by bytes: reads each element once and writes it once or twice, one byte each.
#include "kernels/cuda/fp8/tiles.cuh"
#include "kernels/fp8.hpp"

namespace trireme::kernels::cuda {
namespace {

static_assert(kTile == kScaleBlock, "a thread block has whole blocks of scales in both layouts");
constexpr int kPasses = kTile / kPassRows;

/// A result of the conversion; `codes` is null for one that is not wanted.
struct Result {
  std::uint8_t* codes;
  float* scales;
  ScaleLayout layout;
};

/// A thread's elements of the tile: 4 rows of 8 columns in each pass, as floats.
struct ThreadTile {
  float values[kPasses][kRows][kWidth];
  int column = threadIdx.x % kColumnGroups * kWidth;  ///< in the tile
  int strip = threadIdx.x / kColumnGroups * kRows;    ///< in the rows of a pass

  __device__ __forceinline__ int row(int pass) const { return pass * kPassRows + strip; }

  /// Elements outside of x are zeros.
  template <bool kGelu, typename T>
  __device__ __forceinline__ void load_from(const T* x, std::int64_t rows, std::int64_t columns) {
    const std::int64_t from_column = std::int64_t{blockIdx.x} * kTile + column;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::int64_t from_row = std::int64_t{blockIdx.y} * kTile + row(pass);
      const bool inside = from_row < rows && from_column < columns;  // rows come in sixteens
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Elements<T, kWidth> elements{};
        if (inside) elements = load<kWidth>(x + (from_row + i) * columns + from_column);
        const Values<kWidth> wide = widen(elements);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) values[pass][i][j] = activated<kGelu, T>(wide[j]);
      }
    }
  }
};

__device__ __forceinline__ unsigned magnitude(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFu;
}

/// The factors of the thread's rows and columns.
struct Factors {
  float rows[kPasses][kRows];
  float columns[kWidth];
};

/// Finds the factors of 128 elements of each row and of each column, and writes their inverses.
__device__ __forceinline__ void find_vector_factors(const ThreadTile& tile, float limit,
                                                    const Result& out, const Result& transposed,
                                                    std::int64_t rows, std::int64_t columns,
                                                    Factors& factors) {
  __shared__ unsigned largest[kTile];
  __shared__ float of_columns[kTile];
  const int thread = threadIdx.x;
  const std::int64_t top = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t left = std::int64_t{blockIdx.x} * kTile;
  if (thread < kTile) largest[thread] = 0;
  __syncthreads();
  // ---- rows: each lies in the 16 threads of half a warp
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      unsigned amax = 0;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) amax = ::max(amax, magnitude(tile.values[pass][i][j]));
#pragma unroll
      for (int lane = kColumnGroups / 2; lane > 0; lane /= 2)
        amax = ::max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lane));
      factors.rows[pass][i] = fp8_factor(__uint_as_float(amax), limit);
    }
    const std::int64_t row = top + tile.row(pass);
    if (out.codes && tile.column == 0 && row < rows) {
      const float(&f)[kRows] = factors.rows[pass];
      *reinterpret_cast<float4*>(out.scales + out.layout.index(row, left)) =
          make_float4(1.0f / f[0], 1.0f / f[1], 1.0f / f[2], 1.0f / f[3]);
    }
  }
  if (!transposed.codes) return;
    // ---- columns: each lies in both halves of all warps
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    unsigned amax = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
      for (int i = 0; i < kRows; ++i) amax = ::max(amax, magnitude(tile.values[pass][i][j]));
    amax = ::max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, kColumnGroups));
    if (thread % 32 < kColumnGroups) atomicMax(&largest[tile.column + j], amax);
  }
  __syncthreads();
  if (thread < kTile) {
    const float factor = fp8_factor(__uint_as_float(largest[thread]), limit);
    of_columns[thread] = factor;
    if (left + thread < columns)
      transposed.scales[transposed.layout.index(left + thread, top)] = 1.0f / factor;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kWidth; ++j) factors.columns[j] = of_columns[tile.column + j];
}

/// Finds the factor of the whole tile, and writes its inverse.
__device__ __forceinline__ void find_square_factor(const ThreadTile& tile, float limit,
                                                   const Result& out, const Result& transposed,
                                                   Factors& factors) {
  __shared__ unsigned of_warps[kThreads / 32];
  unsigned amax = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kWidth; ++j) amax = ::max(amax, magnitude(tile.values[pass][i][j]));
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = amax;
  __syncthreads();
#pragma unroll
  for (const unsigned of_warp : of_warps) amax = ::max(amax, of_warp);
  const float factor = fp8_factor(__uint_as_float(amax), limit);
  if (threadIdx.x == 0) {
    const std::int64_t top = std::int64_t{blockIdx.y} * kTile;
    const std::int64_t left = std::int64_t{blockIdx.x} * kTile;
    if (out.codes) out.scales[out.layout.index(top, left)] = 1.0f / factor;
    if (transposed.codes) transposed.scales[transposed.layout.index(left, top)] = 1.0f / factor;
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) factors.columns[j] = factor;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
    for (int i = 0; i < kRows; ++i) factors.rows[pass][i] = factor;
}

/// Eight elements, each times factor(its index), as bytes.
template <__nv_fp8_interpretation_t kType, typename Factor>
__device__ __forceinline__ uint2 rounded(const float (&values)[kWidth], const Factor& factor) {
  std::uint32_t pairs[kWidth / 2];
#pragma unroll
  for (int j = 0; j < kWidth; j += 2)
    pairs[j / 2] = fp8_pair<kType>(values[j] * factor(j), values[j + 1] * factor(j + 1));
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

template <typename T, __nv_fp8_interpretation_t kType, bool kGelu, bool kSquares>
__global__ void __launch_bounds__(kThreads, 2)
    quantize_block_tiles(const T* x, std::int64_t rows, std::int64_t columns, float limit,
                         Result out, Result transposed) {
  __shared__ std::uint32_t words[kTile * kWords];
  ThreadTile tile;
  tile.load_from<kGelu>(x, rows, columns);
  Factors factors;
  if constexpr (kSquares)
    find_square_factor(tile, limit, out, transposed, factors);
  else
    find_vector_factors(tile, limit, out, transposed, rows, columns, factors);
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile + tile.column;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::int64_t row = std::int64_t{blockIdx.y} * kTile + tile.row(pass);
    if (column >= columns || row >= rows) continue;
    uint2 bytes[kRows];
    if (out.codes || kSquares) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        bytes[i] = rounded<kType>(tile.values[pass][i], [&](int) { return factors.rows[pass][i]; });
    }
    if (out.codes) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        *reinterpret_cast<uint2*>(out.codes + (row + i) * columns + column) = bytes[i];
    }
    if (!transposed.codes) continue;
    if constexpr (!kSquares) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        bytes[i] = rounded<kType>(tile.values[pass][i], [&](int j) { return factors.columns[j]; });
    }
    keep_transposed(words, bytes, tile.column, tile.row(pass));
  }
  if (!transposed.codes) return;
  __syncthreads();
  write_transposed(words, transposed.codes, rows, columns);
}

template <typename T, __nv_fp8_interpretation_t kType, bool kGelu, bool kSquares>
void launch(const QuantizeBlocks& args, DType dtype, const Context& context) {
  const auto [rows, columns] = extents_of("quantize_blocks", "x", args.x);
  const T* x = args.x.as<T>();
  TRIREME_CHECK(aligned16(x) && aligned16(args.out.data) && aligned16(args.transposed.data) &&
                    aligned16(args.out_scales.data),
                "quantize_blocks: a tensor is not aligned to 16 bytes");
  if (rows == 0 || columns == 0) return;
  const std::int64_t across = (columns + kTile - 1) / kTile, down = (rows + kTile - 1) / kTile;
  TRIREME_CHECK(down <= 65535, "quantize_blocks: {} rows, at most {} can be", rows, 65535 * kTile);
  const auto result = [&](const Tensor& codes, const Tensor& scales, std::int64_t extent,
                          std::int64_t k) {
    return Result{static_cast<std::uint8_t*>(codes.data), static_cast<float*>(scales.data),
                  scale_layout(args.blocks(), extent, k)};
  };
  quantize_block_tiles<T, kType, kGelu, kSquares>
      <<<dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), kThreads, 0,
         context.stream>>>(x, rows, columns, fp8_max(dtype),
                           result(args.out, args.out_scales, rows, columns),
                           result(args.transposed, args.transposed_scales, columns, rows));
  TRIREME_CUDA_LAUNCHED(quantize_block_tiles);
}

}  // namespace

void quantize_blocks(const QuantizeBlocks& args, const Context& context) {
  const DType dtype = check_quantize_blocks(args);
  const auto of_type = [&](auto zero, auto gelu, auto squares) {
    using T = decltype(zero);
    if (dtype == DType::float8_e4m3)
      launch<T, __NV_E4M3, gelu, squares>(args, dtype, context);
    else
      launch<T, __NV_E5M2, gelu, squares>(args, dtype, context);
  };
  dispatch_cuda(args.x.dtype, [&](auto zero) {
    if (args.squares)
      of_type(zero, std::false_type{}, std::true_type{});
    else if (args.gelu)
      of_type(zero, std::true_type{}, std::false_type{});
    else
      of_type(zero, std::false_type{}, std::false_type{});
  });
}

}  // namespace trireme::kernels::cuda
