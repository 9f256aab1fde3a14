// Bound by bytes: reads each element once and writes it once or twice, one byte each.
#include "kernels/cuda/fp8/tiles.cuh"
#include "kernels/linear.hpp"

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

/// Magnitudes of elements as they are stored, whose order is that of their bits; NaN is the
/// largest. Those of 16 bits are taken two at a time.
template <typename Stored>
struct Magnitudes {
  static constexpr int kPairs = sizeof(Stored) == 2 ? 2 : 1;
  static constexpr std::uint32_t kMask = kPairs == 2 ? 0x7FFF7FFFu : 0x7FFFFFFFu;

  static __device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    if constexpr (kPairs == 2)
      return __vmaxu2(a, b);
    else
      return ::max(a, b);
  }
  /// The larger of a pair, in the lower half.
  static __device__ __forceinline__ std::uint32_t of_pair(std::uint32_t word) {
    if constexpr (kPairs == 2)
      return ::max(word & 0xFFFFu, word >> 16);
    else
      return word;
  }
  static __device__ __forceinline__ float value(std::uint32_t bits) {
    if constexpr (kPairs == 2)
      return to_float(bits_as<Stored>(static_cast<std::uint16_t>(bits)));
    else
      return __uint_as_float(bits);
  }
};

/// A thread's elements of the tile: 4 rows of 8 columns in each pass, as they are stored or, of a
/// GELU, as floats.
template <typename Stored>
struct ThreadTile {
  using Of = Magnitudes<Stored>;
  static constexpr int kRowWords = kWidth / Of::kPairs;
  Elements<Stored, kWidth> elements[kPasses][kRows];
  int column = threadIdx.x % kColumnGroups * kWidth;  ///< in the tile
  int strip = threadIdx.x / kColumnGroups * kRows;    ///< in the rows of a pass

  __device__ __forceinline__ int row(int pass) const { return pass * kPassRows + strip; }

  __device__ __forceinline__ std::uint32_t magnitudes(int pass, int i, int word) const {
    return elements[pass][i].words[word] & Of::kMask;
  }

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
        Elements<T, kWidth> loaded{};
        if (inside) loaded = load<kWidth>(x + (from_row + i) * columns + from_column);
        if constexpr (kGelu) {
          const Values<kWidth> wide = widen(loaded);
#pragma unroll
          for (int j = 0; j < kWidth; ++j)
            elements[pass][i].words[j] = __float_as_uint(activated<true, T>(wide[j]));
        } else {
          elements[pass][i] = loaded;
        }
      }
    }
  }
};

/// The factors of the thread's rows and columns.
struct Factors {
  float rows[kPasses * kRows];
  float columns[kWidth];
};

/// Finds the factors of 128 elements of each row, which lie in the 16 threads of half a warp, and
/// writes their inverses.
template <typename Stored>
__device__ __forceinline__ void find_row_factors(const ThreadTile<Stored>& tile, float limit,
                                                 const Result& out, std::int64_t rows,
                                                 Factors& factors) {
  using Of = Magnitudes<Stored>;
  constexpr int kCount = kPasses * kRows;
  static_assert(kCount == 8 && kColumnGroups == 16);
  const int lane = threadIdx.x % 32;
  std::uint32_t largest[kCount];
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    std::uint32_t word = 0;
#pragma unroll
    for (int w = 0; w < ThreadTile<Stored>::kRowWords; ++w)
      word = Of::larger(word, tile.magnitudes(r / kRows, r % kRows, w));
    largest[r] = Of::of_pair(word);
  }
  // A thread hands half of its rows to another and takes the other half of that one's, until it
  // has one row, lane / 2 % 8, with its neighbour.
#pragma unroll
  for (int count = kCount / 2; count > 0; count /= 2) {
    const bool upper = lane & (2 * count);
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const std::uint32_t other =
          __shfl_xor_sync(~0u, upper ? largest[r] : largest[r + count], 2 * count);
      largest[r] = ::max(upper ? largest[r + count] : largest[r], other);
    }
  }
  largest[0] = ::max(largest[0], __shfl_xor_sync(~0u, largest[0], 1));
  const float factor = fp8_factor(Of::value(largest[0]), limit);
  const int mine = lane / 2 % kCount;
  const std::int64_t top = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t row = top + tile.row(mine / kRows) + mine % kRows;
  if (out.codes && lane % 2 == 0 && row < rows)
    out.scales[out.layout.index(row, std::int64_t{blockIdx.x} * kTile)] = 1.0f / factor;
#pragma unroll
  for (int r = 0; r < kCount; ++r)
    factors.rows[r] = __shfl_sync(~0u, factor, (lane & kColumnGroups) | 2 * r);
}

/// Finds the factors of 128 elements of each column, which lie in both halves of all warps, and
/// writes their inverses.
template <typename Stored>
__device__ __forceinline__ void find_column_factors(const ThreadTile<Stored>& tile, float limit,
                                                    const Result& transposed, std::int64_t columns,
                                                    Factors& factors) {
  using Of = Magnitudes<Stored>;
  constexpr int kWarps = kThreads / 32;
  __shared__ std::uint32_t of_warps[kWarps][kTile / Of::kPairs];
  alignas(16) __shared__ float of_columns[kTile];
  const int thread = threadIdx.x;
#pragma unroll
  for (int w = 0; w < ThreadTile<Stored>::kRowWords; ++w) {
    std::uint32_t word = 0;
#pragma unroll
    for (int r = 0; r < kPasses * kRows; ++r)
      word = Of::larger(word, tile.magnitudes(r / kRows, r % kRows, w));
    word = Of::larger(word, __shfl_xor_sync(~0u, word, kColumnGroups));
    if (thread % 32 < kColumnGroups) of_warps[thread / 32][tile.column / Of::kPairs + w] = word;
  }
  __syncthreads();
  if (thread < kTile) {
    std::uint32_t word = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      word = Of::larger(word, of_warps[warp][thread / Of::kPairs]);
    if constexpr (Of::kPairs == 2) word = thread % 2 == 0 ? word & 0xFFFFu : word >> 16;
    const float factor = fp8_factor(Of::value(word), limit);
    of_columns[thread] = factor;
    const std::int64_t column = std::int64_t{blockIdx.x} * kTile + thread;
    if (column < columns)
      transposed.scales[transposed.layout.index(column, std::int64_t{blockIdx.y} * kTile)] =
          1.0f / factor;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kWidth; ++j) factors.columns[j] = of_columns[tile.column + j];
}

/// Finds the factor of the whole tile, and writes its inverse.
template <typename Stored>
__device__ __forceinline__ void find_square_factor(const ThreadTile<Stored>& tile, float limit,
                                                   const Result& out, const Result& transposed,
                                                   Factors& factors) {
  using Of = Magnitudes<Stored>;
  __shared__ unsigned of_warps[kThreads / 32];
  std::uint32_t word = 0;
#pragma unroll
  for (int r = 0; r < kPasses * kRows; ++r)
#pragma unroll
    for (int w = 0; w < ThreadTile<Stored>::kRowWords; ++w)
      word = Of::larger(word, tile.magnitudes(r / kRows, r % kRows, w));
  unsigned largest = __reduce_max_sync(~0u, Of::of_pair(word));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (const unsigned of_warp : of_warps) largest = ::max(largest, of_warp);
  const float factor = fp8_factor(Of::value(largest), limit);
  if (threadIdx.x == 0) {
    const std::int64_t top = std::int64_t{blockIdx.y} * kTile;
    const std::int64_t left = std::int64_t{blockIdx.x} * kTile;
    if (out.codes) out.scales[out.layout.index(top, left)] = 1.0f / factor;
    if (transposed.codes) transposed.scales[transposed.layout.index(left, top)] = 1.0f / factor;
  }
#pragma unroll
  for (float& of_column : factors.columns) of_column = factor;
#pragma unroll
  for (float& of_row : factors.rows) of_row = factor;
}

/// fp8_pair(), as a call where the GPU has no instruction for it (before compute capability 8.9):
/// 64 copies in each kernel take nvcc a minute. Runs use these kernels on 9.0 alone.
template <__nv_fp8_interpretation_t kType>
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
__device__ __noinline__
#else
__device__ __forceinline__
#endif
    std::uint32_t
    fp8_pair_or_call(float first, float second) {
  return fp8_pair<kType>(first, second);
}

/// Eight elements, each times factor(its index), as bytes.
template <__nv_fp8_interpretation_t kType, typename Factor>
__device__ __forceinline__ uint2 rounded(const Values<kWidth>& values, const Factor& factor) {
  std::uint32_t pairs[kWidth / 2];
#pragma unroll
  for (int j = 0; j < kWidth; j += 2)
    pairs[j / 2] = fp8_pair_or_call<kType>(values[j] * factor(j), values[j + 1] * factor(j + 1));
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

template <typename T, __nv_fp8_interpretation_t kType, bool kGelu, bool kSquares>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 && !kGelu ? 3 : 2)
    quantize_block_tiles(const T* x, std::int64_t rows, std::int64_t columns, float limit,
                         Result out, Result transposed) {
  __shared__ std::uint32_t words[kTile * kWords];
  ThreadTile<std::conditional_t<kGelu, float, T>> tile;
  tile.template load_from<kGelu>(x, rows, columns);
  Factors factors;
  if constexpr (kSquares) {
    find_square_factor(tile, limit, out, transposed, factors);
  } else {
    find_row_factors(tile, limit, out, rows, factors);
    if (transposed.codes) find_column_factors(tile, limit, transposed, columns, factors);
  }
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile + tile.column;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::int64_t row = std::int64_t{blockIdx.y} * kTile + tile.row(pass);
    if (column >= columns || row >= rows) continue;
    uint2 bytes[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Values<kWidth> values = widen(tile.elements[pass][i]);
      if (out.codes) {
        const uint2 codes =
            rounded<kType>(values, [&](int) { return factors.rows[pass * kRows + i]; });
        *reinterpret_cast<uint2*>(out.codes + (row + i) * columns + column) = codes;
      }
      if (transposed.codes)
        bytes[i] = rounded<kType>(values, [&](int j) { return factors.columns[j]; });
    }
    if (transposed.codes) keep_transposed(words, bytes, tile.column, tile.row(pass));
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
