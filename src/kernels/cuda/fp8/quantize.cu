// The largest magnitude of a tensor, and its elements in 8 bits. Bound by bytes: the first reads
// each element once, the second reads it once and writes it once or twice, one byte each.
#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/fp8/tiles.cuh"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kAmaxThreads = 512;
constexpr int kUnroll = 4;  // loads of a thread that are under way
constexpr int kBlocksPerSm = 4;

template <bool kGelu, int kWidth, typename T>
__device__ __forceinline__ unsigned largest_of(const Elements<T, kWidth>& elements) {
  Values<kWidth> values = widen(elements);
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kGelu) values[i] *= Gelu<T>(values[i]).s;
    largest = max(largest, __float_as_uint(values[i]) & 0x7FFFFFFFu);
  }
  return largest;
}

// Magnitudes are compared by their bits: NaN is the largest. The maximum does not depend on the
// order of the blocks.
template <typename T, int kWidth, bool kGelu>
__global__ void __launch_bounds__(kAmaxThreads)
    find_amax(const T* x, std::int64_t size, unsigned* amax) {
  const std::int64_t groups = size / kWidth;
  const std::int64_t stride = std::int64_t{gridDim.x} * kAmaxThreads;
  unsigned largest = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kAmaxThreads + threadIdx.x; first < groups;
       first += kUnroll * stride) {
    Elements<T, kWidth> elements[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = first + u * stride;
      if (i < groups) elements[u] = load<kWidth>(x + i * kWidth);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u * stride < groups) largest = max(largest, largest_of<kGelu>(elements[u]));
  }
  if (blockIdx.x == 0 && groups * kWidth + threadIdx.x < size)
    largest = max(largest, largest_of<kGelu>(load<1>(x + groups * kWidth + threadIdx.x)));
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  __shared__ unsigned of_warps[kAmaxThreads / 32];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  largest =
      __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < kAmaxThreads / 32 ? of_warps[threadIdx.x] : 0u);
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

/// Raises *amax to the largest magnitude of x's elements, or of their GELUs.
void find_largest(const Tensor& x, bool gelu, float* amax, const Context& context) {
  const std::int64_t size = x.size();
  if (size == 0) return;
  dispatch_cuda(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* elements = x.as<T>();
    const auto launch = [&](auto width, auto of_gelu) {
      const std::int64_t block = std::int64_t{kAmaxThreads} * kUnroll * width;
      const auto blocks = static_cast<unsigned>(
          std::min<std::int64_t>((size + block - 1) / block, kBlocksPerSm * context.sms));
      find_amax<T, width, of_gelu><<<blocks, kAmaxThreads, 0, context.stream>>>(
          elements, size, reinterpret_cast<unsigned*>(amax));
      TRIREME_CUDA_LAUNCHED(find_amax);
    };
    dispatch_width<T>(aligned16(elements), [&](auto width) {
      if (gelu)
        launch(width, std::true_type{});
      else
        launch(width, std::false_type{});
    });
  });
}

}  // namespace

void raise_amax(const Tensor& x, const Context& context) {
  if (x.amax) find_largest(x, /*gelu=*/false, x.amax, context);
}

void amax(const Amax& args, const Context& context) {
  check_vector("amax", "x", args.x, args.x.dtype, args.x.size());
  check_vector("amax", "amax", args.amax, DType::f32, 1);
  TRIREME_CUDA(cudaMemsetAsync(args.amax.data, 0, sizeof(float), context.stream));
  find_largest(args.x, args.gelu, args.amax.as<float>(), context);
}

// ---- quantization

namespace {

/// Elements, or their GELUs, times `factor` as bytes.
template <bool kGelu, __nv_fp8_interpretation_t kType, typename T>
__device__ __forceinline__ uint2 converted(const Elements<T, kWidth>& elements, float factor) {
  Values<kWidth> values = widen(elements);
#pragma unroll
  for (float& value : values.values) value = activated<kGelu, T>(value);
  std::uint32_t pairs[kWidth / 2];
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i)
    pairs[i] = fp8_pair<kType>(values[2 * i] * factor, values[2 * i + 1] * factor);
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

/// The quantization factor; the first thread of the grid writes its inverse.
__device__ __forceinline__ float factor_of(const float* amax, float max, float* scale) {
  const float factor = fp8_factor(*amax, max);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scale = 1.0f / factor;
  return factor;
}

// T and n are multiples of 8, all rows aligned to 8 elements; out or transposed may be null.
template <typename T, __nv_fp8_interpretation_t kType, bool kGelu>
__global__ void __launch_bounds__(kThreads)
    quantize_tiles(const T* x, std::int64_t rows, std::int64_t columns, const float* amax,
                   float max, float* scale, std::uint8_t* out, std::uint8_t* transposed) {
  __shared__ std::uint32_t tile[kTile * kWords];
  const float factor = factor_of(amax, max, scale);
  const int group = threadIdx.x % kColumnGroups, strip = threadIdx.x / kColumnGroups;
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile + group * kWidth;
  const std::int64_t top = std::int64_t{blockIdx.y} * kTile;
#pragma unroll
  for (int pass = 0; pass < kTile / kPassRows; ++pass) {
    const int first = pass * kPassRows + strip * kRows;
    const std::int64_t row = top + first;
    if (column >= columns || row >= rows) continue;  // rows come in eights
    const T* from = x + row * columns + column;
    Elements<T, kWidth> elements[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) elements[i] = load<kWidth>(from + i * columns);
    uint2 bytes[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) bytes[i] = converted<kGelu, kType>(elements[i], factor);
    if (out) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        *reinterpret_cast<uint2*>(out + (row + i) * columns + column) = bytes[i];
    }
    keep_transposed(tile, bytes, group * kWidth, first);
  }
  if (!transposed) return;
  __syncthreads();
  write_transposed(tile, transposed, rows, columns);
}

// Any extents and alignment; not used in training.
template <typename T, __nv_fp8_interpretation_t kType, bool kGelu>
__global__ void __launch_bounds__(kThreads)
    quantize_elements(const T* x, std::int64_t rows, std::int64_t columns, const float* amax,
                      float max, float* scale, std::uint8_t* out, std::uint8_t* transposed) {
  const float factor = factor_of(amax, max, scale);
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * columns;
       i += stride) {
    const auto byte = static_cast<std::uint8_t>(
        fp8_pair<kType>(activated<kGelu, T>(to_float(x[i])) * factor, 0.0f) & 0xFFu);
    if (out) out[i] = byte;
    if (transposed) transposed[i % columns * rows + i / columns] = byte;
  }
}

template <typename T, __nv_fp8_interpretation_t kType, bool kGelu>
void launch(const Quantize& args, DType dtype, const Context& context) {
  const auto [rows, columns] = extents_of("quantize", "x", args.x);
  const T* x = args.x.as<T>();
  const auto bytes = [](const Tensor& tensor) { return static_cast<std::uint8_t*>(tensor.data); };
  std::uint8_t* const out = bytes(args.out);
  std::uint8_t* const transposed = bytes(args.transposed);
  const float max = fp8_max(dtype);
  const std::int64_t across = (columns + kTile - 1) / kTile, down = (rows + kTile - 1) / kTile;
  if (rows % kWidth == 0 && columns % kWidth == 0 && rows > 0 && aligned16(x) && aligned16(out) &&
      aligned16(transposed) && down <= 65535) {
    quantize_tiles<T, kType, kGelu>
        <<<dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), kThreads, 0,
           context.stream>>>(x, rows, columns, args.amax.as<float>(), max, args.scale.as<float>(),
                             out, transposed);
    TRIREME_CUDA_LAUNCHED(quantize_tiles);
    return;
  }
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::int64_t>((rows * columns + kThreads - 1) / kThreads, 1, 32 * context.sms));
  quantize_elements<T, kType, kGelu><<<blocks, kThreads, 0, context.stream>>>(
      x, rows, columns, args.amax.as<float>(), max, args.scale.as<float>(), out, transposed);
  TRIREME_CUDA_LAUNCHED(quantize_elements);
}

}  // namespace

void quantize(const Quantize& args, const Context& context) {
  const DType dtype = check_quantize(args);
  const auto of_types = [&](auto zero, auto gelu) {
    using T = decltype(zero);
    if (dtype == DType::float8_e4m3)
      launch<T, __NV_E4M3, gelu>(args, dtype, context);
    else
      launch<T, __NV_E5M2, gelu>(args, dtype, context);
  };
  dispatch_cuda(args.x.dtype, [&](auto zero) {
    if (args.gelu)
      of_types(zero, std::true_type{});
    else
      of_types(zero, std::false_type{});
  });
}

}  // namespace trireme::kernels::cuda
