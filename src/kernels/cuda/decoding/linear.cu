#include <algorithm>

#include "kernels/cuda/decoding/launch.cuh"
#include "kernels/cuda/decoding/linear_parts.cuh"
#include "kernels/decoding.hpp"

// A block computes kTile outputs of all rows. Bound by the bytes of the weight, which each block
// begins to read before the kernel that writes x has ended.
namespace trireme::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kParity = kLinearSlices / kWarps;  // slices of a warp, which takes its steps in turn
static_assert(kParity == 2);
constexpr int kThreads = 32 * kWarps;
constexpr int kTile = 16;
constexpr int kRows = static_cast<int>(kMaxDecodeRows);
static_assert(kRows == kWarps, "a warp computes the statistics of a row");

template <typename T>
struct LinearParameters {
  const T* x;
  const T* weight;
  T* y;
  NormParameters<T> norm;
  const T* bias;
  const T* residual;
  int rows, n, k;
  bool gated;
  DecodeEpilogue function;
};

// Output `o` of row `row` from its accumulator `first`, and `second` of the up half.
template <typename T>
__device__ __forceinline__ void finish(const LinearParameters<T>& p, int row, int o, float first,
                                       float second) {
  const std::int64_t place = std::int64_t{row} * p.n + o;
  const float bias = p.bias ? to_float(p.bias[o]) : 0.0f;
  const float residual = p.residual ? to_float(p.residual[place]) : 0.0f;
  p.y[place] = from_float<T>(finished<T>({.bias = p.bias != nullptr,
                                          .gated = p.gated,
                                          .residual = p.residual != nullptr,
                                          .function = p.function},
                                         first, second, bias, residual));
}

// ---- 16-bit types: tensor cores, with the outputs as the rows of A and the tokens as the columns
// of B. Each lane reads 16 consecutive bytes of a weight row: the columns of the fragments are a
// permutation of k, the same for A and B.

// A warp's weights of kGroup steps, which are loaded together: two output rows and two packs of
// each step.
template <int kHalves>
struct WeightGroup {
  static constexpr int kGroup = 2 / kHalves;
  uint4 packs[kGroup][kHalves][2][2];
};

// 16 bytes that no other kernel reads soon.
__device__ __forceinline__ uint4 load_weight(const void* pointer) {
  uint4 pack;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(pack.x), "=r"(pack.y), "=r"(pack.z), "=r"(pack.w)
               : "l"(pointer));
  return pack;
}

template <typename T, int kHalves>
__device__ __forceinline__ void load_group(const LinearParameters<T>& p, int output, int step,
                                           WeightGroup<kHalves>& group) {
  constexpr int kGroup = WeightGroup<kHalves>::kGroup;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < kGroup; ++s)
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const int o = output + lane / 4 + 8 * r;
          const int i = (step + s * kWarps) * kLinearStep + 32 * part + 8 * (lane % 4);
          uint4& pack = group.packs[s][half][r][part];
          pack = make_uint4(0, 0, 0, 0);
          if (o < p.n && i < p.k)
            pack = load_weight(p.weight + (std::int64_t{half} * p.n + o) * p.k + i);
        }
}

// Shared memory: norm(x), each row `row_stride` elements after the one before, so that a warp reads
// fragments of eight rows without bank conflicts; zeros from k on.
__host__ __device__ constexpr int row_stride(int k) {
  return (k + kLinearStep - 1) / kLinearStep * kLinearStep + 32;
}

template <typename T>
__device__ void stage_input(const LinearParameters<T>& p, T* staged) {
  __shared__ Statistics shared[kRows];
  const int stride = row_stride(p.k), packs = stride / 8;
  for (int task = threadIdx.x; task < p.rows * packs; task += kThreads) {
    const int row = task / packs, i = task % packs * 8;
    Elements<T, 8> x = {};
    if (i < p.k) x = load<8>(p.x + std::int64_t{row} * p.k + i);
    *reinterpret_cast<Elements<T, 8>*>(staged + row * stride + i) = x;
  }
  __syncthreads();
  if (!p.norm.weight) return;
  const int warp = threadIdx.x / 32;
  if (warp < p.rows) {
    const Statistics own = half_statistics_of(p.norm, p.k, staged + warp * stride);
    if (threadIdx.x % 32 == 0) shared[warp] = own;
  }
  __syncthreads();
  for (int task = threadIdx.x; task < p.rows * packs; task += kThreads) {
    const int row = task / packs, i = task % packs * 8;
    auto* x = reinterpret_cast<Elements<T, 8>*>(staged + row * stride + i);
    if (i < p.k) *x = normalize<T, 8>(p.norm, *x, i, shared[row]);
  }
  __syncthreads();
}

template <typename T, int kHalves>
__device__ __forceinline__ void multiply_group(const LinearParameters<T>& p, const T* staged,
                                               int step, const WeightGroup<kHalves>& group,
                                               int parity, float (&sums)[kParity][kHalves][2][4]) {
  constexpr int kGroup = WeightGroup<kHalves>::kGroup;
  const int lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll
  for (int s = 0; s < kGroup; ++s)
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int i = (step + s * kWarps) * kLinearStep + 32 * part + 8 * (lane % 4);
      Elements<T, 8> x = {};
      if (row < p.rows && i < p.k)
        x = *reinterpret_cast<const Elements<T, 8>*>(staged + row * row_stride(p.k) + i);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const uint4& a = group.packs[s][half][0][part];
        const uint4& b = group.packs[s][half][1][part];
        const std::uint32_t* v = x.words;
        float(&sum)[2][4] = sums[kGroup == kParity ? s : parity][half];
        multiply(sum[0], a.x, b.x, a.z, b.z, v[0], v[2], T{});
        multiply(sum[1], a.y, b.y, a.w, b.w, v[1], v[3], T{});
      }
    }
}

// Starts to read the warp's weights from `step` on into L2.
template <typename T, int kHalves>
__device__ __forceinline__ void prefetch_weights(const LinearParameters<T>& p, int output,
                                                 int step) {
  const int lane = threadIdx.x % 32;
  // A line of 128 bytes is a step of one output; a lane takes every 32nd of them.
  for (; step * kLinearStep < p.k; step += kWarps) {
    const int o = output + lane % kTile;
    const int half = lane / kTile;
    if (half < kHalves && o < p.n)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(
          p.weight + (std::int64_t{half} * p.n + o) * p.k + step * kLinearStep));
  }
}

// The warps share k; the sums of their slices are added in turn.
template <typename T, int kHalves>
__global__ void __launch_bounds__(kThreads, 2) linear_tiles(const LinearParameters<T> p) {
  extern __shared__ uint4 dynamic[];
  __shared__ float partial[kHalves][kLinearSlices][kTile][kRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int output = static_cast<int>(blockIdx.x) * kTile;
  constexpr int kStride = WeightGroup<kHalves>::kGroup * kWarps;
  T* const staged = reinterpret_cast<T*>(dynamic);
  WeightGroup<kHalves> even, odd;
  allow_dependents();
  load_group(p, output, warp, even);
  load_group(p, output, warp + kStride, odd);
  prefetch_weights<T, kHalves>(p, output, warp + 2 * kStride);
  wait_for_previous_kernel();
  stage_input(p, staged);
  float sums[kParity][kHalves][2][4] = {};
  const int steps = (p.k + kLinearStep - 1) / kLinearStep;
  for (int step = warp; step < steps; step += 2 * kStride) {
    multiply_group(p, staged, step, even, 0, sums);
    load_group(p, output, step + 2 * kStride, even);
    multiply_group(p, staged, step + kStride, odd, 1, sums);
    load_group(p, output, step + 3 * kStride, odd);
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half)
#pragma unroll
    for (int i = 0; i < kParity; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        partial[half][i * kWarps + warp][lane / 4 + 8 * (c / 2)][2 * (lane % 4) + c % 2] =
            sums[i][half][0][c] + sums[i][half][1][c];
  __syncthreads();
  const int row = threadIdx.x / kTile, o = threadIdx.x % kTile;
  if (row >= p.rows || output + o >= p.n) return;
  float totals[2] = {};
#pragma unroll
  for (int half = 0; half < kHalves; ++half)
#pragma unroll
    for (int i = 0; i < kLinearSlices; ++i) totals[half] += partial[half][i][o][row];
  finish(p, row, output + o, totals[0], totals[1]);
}

// ---- any type and alignment: a warp computes an output of all rows on CUDA cores

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) linear_rows(const LinearParameters<T> p) {
  __shared__ Statistics shared[kRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  allow_dependents();
  wait_for_previous_kernel();
  if (p.norm.weight && warp < p.rows) {
    const Statistics own = statistics_of<T, kWidth>(p.norm, p.k, p.x + std::int64_t{warp} * p.k);
    if (lane == 0) shared[warp] = own;
  }
  __syncthreads();
  for (int o = static_cast<int>(blockIdx.x) * kTile + warp;
       o < min(p.n, (static_cast<int>(blockIdx.x) + 1) * kTile); o += kWarps) {
    float sums[2][kRows] = {};
    for (int i = lane * kWidth; i < p.k; i += 32 * kWidth)
      for (int half = 0; half <= static_cast<int>(p.gated); ++half) {
        const Values<kWidth> weight =
            widen<T, kWidth>(load<kWidth>(p.weight + (std::int64_t{half} * p.n + o) * p.k + i));
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          if (row >= p.rows) continue;
          const Values<kWidth> x = widen<T, kWidth>(normalize<T, kWidth>(
              p.norm, load<kWidth>(p.x + std::int64_t{row} * p.k + i), i, shared[row]));
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            float& sum = half == 0 ? sums[0][row] : sums[1][row];
            sum = fmaf(weight[c], x[c], sum);
          }
        }
      }
    float first = 0.0f, second = 0.0f;  // of the row that this lane finishes
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float of_row = warp_sum(sums[0][row]), up = warp_sum(sums[1][row]);
      if (lane == row) {
        first = of_row;
        second = up;
      }
    }
    if (lane < p.rows) finish(p, lane, o, first, second);
  }
}

}  // namespace

void decode_linear(const DecodeLinear& args, const Context& context) {
  const char* op = "decode_linear";
  const DType dtype = args.x.dtype;
  const Extents x = extents_of(op, "x", args.x);
  const std::int64_t n = extents_of(op, "y", args.y).columns, k = x.columns;
  TRIREME_CHECK(x.rows <= kMaxDecodeRows, "{}: {} rows, at most {}", op, x.rows, kMaxDecodeRows);
  TRIREME_CHECK(!args.gated || (args.function && !args.bias && !args.residual),
                "{}: a gated layer has a function, and no bias and no residual", op);
  check_matrix(op, "weight", args.weight, dtype, {args.gated ? 2 * n : n, k});
  check_matrix(op, "y", args.y, dtype, {x.rows, n});
  if (args.norm.weight) check_vector(op, "norm.weight", args.norm.weight, dtype, k);
  if (args.norm.bias) check_vector(op, "norm.bias", args.norm.bias, dtype, k);
  if (args.bias) check_vector(op, "bias", args.bias, dtype, n);
  if (args.residual) check_matrix(op, "residual", args.residual, dtype, {x.rows, n});
  if (x.rows == 0 || n == 0) return;
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto pointer = [](const Tensor& tensor) -> const T* {
      return tensor ? tensor.as<T>() : nullptr;
    };
    const LinearParameters<T> p{.x = args.x.as<T>(),
                                .weight = args.weight.as<T>(),
                                .y = args.y.as<T>(),
                                .norm = {.weight = pointer(args.norm.weight),
                                         .bias = pointer(args.norm.bias),
                                         .eps = static_cast<float>(args.norm.eps),
                                         .mean = args.norm.kind == NormKind::layer},
                                .bias = pointer(args.bias),
                                .residual = pointer(args.residual),
                                .rows = static_cast<int>(x.rows),
                                .n = static_cast<int>(n),
                                .k = static_cast<int>(k),
                                .gated = args.gated,
                                .function = epilogue_of(args.function)};
    const dim3 blocks(static_cast<unsigned>((n + kTile - 1) / kTile));
    const bool aligned = rows_aligned16<T>(k, p.x, p.weight, p.norm.weight, p.norm.bias);
    constexpr int kWidth = 16 / sizeof(T);
    const auto enqueue = [&](auto* kernel, std::size_t shared_bytes) {
      launch_early(kernel, blocks, kThreads, shared_bytes, context, 1, p);
    };
    if constexpr (sizeof(T) == 2) {
      const std::size_t staged = sizeof(T) * x.rows * row_stride(p.k);
      constexpr std::size_t kStatic = std::size_t{36} << 10;  // at least what the kernel has
      if (aligned && staged + kStatic <= static_cast<std::size_t>(context.shared_memory_bytes))
        return args.gated ? enqueue(linear_tiles<T, 2>, staged)
                          : enqueue(linear_tiles<T, 1>, staged);
    }
    if (aligned)
      enqueue(linear_rows<T, kWidth>, 0);
    else
      enqueue(linear_rows<T, 1>, 0);
  });
}

}  // namespace trireme::kernels::cuda
