#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/hopper/tiles.hpp"
#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/workspace.hpp"
#include "kernels/linear.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 8;  // threads a row: with d = 64 and 16-bit types, one pack each

// Rows of out and dout, [s, b, heads, d], to statistics [b, heads, s]. Bound by bytes: reads 2 d
// elements a row.
template <typename T>
__global__ void sum_rows(const T* out, const T* dout, const float* lse, RowStatistics* statistics,
                         const AttentionSizes sizes) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes, d = sizes.d;
  const std::int64_t tasks = std::int64_t{sizes.b} * sizes.heads;
  const bool inside = row < tasks * sizes.s;
  // Padding: no score has a probability above zero.
  const bool counts = inside && row / tasks < sizes.length(static_cast<int>(row % tasks));
  float delta = 0.0f;
  if (counts) {
    out += row * d;
    dout += row * d;
    if (sizes.access_bytes == 16) {
      constexpr int kSize = Pack<T>::kSize;
      for (int i = lane * kSize; i < d; i += kLanes * kSize) {
        const Pack<T> a = load_pack(out + i), b = load_pack(dout + i);
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          delta = fmaf(to_float(a.values[j]), to_float(b.values[j]), delta);
      }
    } else {
      for (int i = lane; i < d; i += kLanes)
        delta = fmaf(to_float(out[i]), to_float(dout[i]), delta);
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(~0u, delta, step);
  if (inside && lane == 0) {
    const std::int64_t at = row % tasks * sizes.s + row / tasks;
    statistics[at] = {counts ? lse[at] * kLog2E : INFINITY, delta};
  }
}

}  // namespace

void launch_statistics(const AttentionBackward& args, const Context& context) {
  dispatch_cuda(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(args.out.data) && aligned16(args.dout.data);
    const AttentionSizes sizes = attention_sizes(args, aligned);
    const std::int64_t rows = std::int64_t{sizes.s} * sizes.b * sizes.heads;
    const AttentionBackwardLayout layout =
        attention_backward_layout(args.qkv.dtype, sizes.s, sizes.b, sizes.heads, sizes.d);
    launch(sum_rows<T>, (rows + kThreads / kLanes - 1) / (kThreads / kLanes), kThreads, 0, context,
           static_cast<const T*>(args.out.as<T>()), static_cast<const T*>(args.dout.as<T>()),
           static_cast<const float*>(args.lse.as<float>()),
           reinterpret_cast<RowStatistics*>(context.workspace + layout.statistics), sizes);
  });
}

namespace {

// Zeros in the rows of x [s, b, n] that are padding: a warp a row, in units of kBytes. Bound by
// bytes.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    clear_padding_units(Unit* x, const std::int32_t* lengths, std::int64_t rows, int b, int units) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows || row / b < lengths[row % b]) return;
  for (int i = threadIdx.x % 32; i < units; i += 32) x[row * units + i] = Unit{};
}

void clear_padding(const Tensor& x, const std::int32_t* lengths, const Context& context) {
  const std::int64_t b = x.shape[1], rows = x.shape[0] * b;
  const std::int64_t row_bytes = x.shape[2] * static_cast<std::int64_t>(size_of(x.dtype));
  const auto queue = [&](auto unit) {
    using Unit = decltype(unit);
    const std::int64_t blocks = (rows + kThreads / 32 - 1) / (kThreads / 32);
    launch(clear_padding_units<Unit>, blocks, kThreads, 0, context, static_cast<Unit*>(x.data),
           lengths, rows, static_cast<int>(b), static_cast<int>(row_bytes / sizeof(Unit)));
  };
  if (aligned16(x.data) && row_bytes % 16 == 0) {
    queue(uint4{});
  } else {
    queue(std::uint16_t{});
  }
}

// Zeros in the elements of lse [b, heads, s] that are padding.
__global__ void __launch_bounds__(kThreads)
    clear_padding_elements(float* lse, const std::int32_t* lengths, std::int64_t size, int heads,
                           int s) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < size && i % s >= lengths[i / s / heads]) lse[i] = 0.0f;
}

void clear_padding_rows(const Tensor& lse, const std::int32_t* lengths, const Context& context) {
  const std::int64_t size = lse.size();
  launch(clear_padding_elements, (size + kThreads - 1) / kThreads, kThreads, 0, context,
         lse.as<float>(), lengths, size, static_cast<int>(lse.shape[1]),
         static_cast<int>(lse.shape[2]));
}

// The heads of keys and values.
template <typename Args>
std::int64_t kv_heads_of(const Args& args) {
  return args.kv_heads > 0 ? args.kv_heads : args.heads;
}

// Throws unless qkv is [s, b, (heads + 2 kv_heads) * d] with a d that the kernels take and out is
// [s, b, heads * d] of the same type; returns d.
template <typename Args>
std::int64_t check_qkv(const char* op, const Args& args) {
  const Tensor& qkv = args.qkv;
  const std::int64_t heads = args.heads, kv_heads = kv_heads_of(args), all = heads + 2 * kv_heads;
  TRIREME_CHECK(heads > 0 && heads % kv_heads == 0 && qkv.shape.rank() == 3 && qkv.shape[2] > 0 &&
                    qkv.shape[2] % all == 0,
                "{}: qkv is {}, expected [s, b, (heads + 2 kv_heads) * d] with {} and {} heads", op,
                to_string(qkv.shape), heads, kv_heads);
  const std::int64_t rows = qkv.shape[0] * qkv.shape[1], d = qkv.shape[2] / all;
  TRIREME_CHECK(d <= kMaxHead, "{}: heads of {}, at most {} are possible", op, d, kMaxHead);
  check_matrix(op, "qkv", qkv, qkv.dtype, {rows, all * d});
  check_matrix(op, "out", args.out, qkv.dtype, {rows, heads * d});
  return d;
}

// dK and dV of query heads [s, b, 2 heads, d], in units of kWidth elements, to their sums over the
// query heads of a group, in the place of k and v in dqkv. Bound by bytes.
template <typename T, int kWidth>
struct SumGroups {
  static constexpr int kUnroll = 1;
  struct Inputs {};

  const T* gradients;
  T* dqkv;
  int b, heads, kv_heads, d;
  const std::int32_t* lengths;  ///< [b], or null: nothing was written for padding

  __device__ Inputs load(std::uint32_t, std::uint32_t) const { return {}; }
  /// `column` of the 2 kv_heads * d elements of k and v of token `row`.
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs&) const {
    T* to = dqkv + (std::int64_t{row} * (heads + 2 * kv_heads) + heads) * d + column;
    if (lengths && static_cast<int>(row / b) >= lengths[row % b])
      return cuda::store(to, narrow<T>(Values<kWidth>{}));
    const int head = static_cast<int>(column) / d, group = heads / kv_heads;
    const T* from = gradients + (std::int64_t{row} * 2 * heads + head * group) * d +
                    (static_cast<int>(column) - head * d);
    Values<kWidth> sum = widen(cuda::load<kWidth>(from));
    for (int i = 1; i < group; ++i) {
      const Values<kWidth> next = widen(cuda::load<kWidth>(from + i * d));
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += next[j];
    }
    cuda::store(to, narrow<T>(sum));
  }
};

void sum_groups(const AttentionBackward& args, std::int64_t d, const void* gradients,
                const Context& context) {
  dispatch_half(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t b = args.qkv.shape[1], columns = 2 * args.kv_heads * d;
    const Extents extents{args.qkv.shape[0] * b, columns};
    T* dqkv = args.dqkv.as<T>();
    dispatch_width<T>(rows_aligned16<T>(d, dqkv), [&](auto width) {
      launch_rows<width>(
          "attention_backward",
          SumGroups<T, width>{static_cast<const T*>(gradients), dqkv, static_cast<int>(b),
                              static_cast<int>(args.heads), static_cast<int>(args.kv_heads),
                              static_cast<int>(d), args.lengths},
          extents, context);
    });
  });
}

// Whether the kernels for Hopper take the operation on qkv and other tensors at `data`, with heads
// of d: their dropout draws keys by eights.
bool takes_boxes(const Tensor& qkv, std::int64_t d, const Dropout& dropout,
                 std::initializer_list<const void*> data, const Context& context) {
  const bool aligned = aligned16(qkv.data) && std::all_of(data.begin(), data.end(), aligned16);
  return context.is_hopper() && qkv.dtype != DType::f32 &&
         (dropout.probability == 0.0 || qkv.shape[0] % 8 == 0) && fits_boxes(d, aligned);
}

}  // namespace

void attention_forward(const AttentionForward& args, const Context& context) {
  const char* op = "attention_forward";
  const std::int64_t d = check_qkv(op, args);
  const std::int64_t s = args.qkv.shape[0], b = args.qkv.shape[1];
  check_vector(op, "lse", args.lse, DType::f32, b * args.heads * s);
  check_dropout(op, args.dropout);
  check_workspace(op, context, attention_forward_workspace());
  if (args.qkv.size() == 0) return;
  if (args.lengths) {
    clear_padding(args.out, args.lengths, context);
    clear_padding_rows(args.lse, args.lengths, context);
  }
  if (takes_boxes(args.qkv, d, args.dropout, {args.out.data}, context)) {
    return dispatch_head(BoxForwardHeads(), d, [&](auto padded) {
      launch_box_forward<decltype(padded)::value>(args, context);
    });
  }
  if (args.qkv.dtype == DType::f32)
    launch_plain_forward(args, context);
  else
    dispatch_head(TileHeads(), d,
                  [&](auto padded) { launch_forward<decltype(padded)::value>(args, context); });
  raise_amax(args.out, context);
}

void attention_backward(const AttentionBackward& args, const Context& context) {
  const char* op = "attention_backward";
  const std::int64_t d = check_qkv(op, args), kv_heads = kv_heads_of(args);
  const std::int64_t s = args.qkv.shape[0], b = args.qkv.shape[1];
  check_matrix(op, "dout", args.dout, args.qkv.dtype, {s * b, args.heads * d});
  check_matrix(op, "dqkv", args.dqkv, args.qkv.dtype, {s * b, (args.heads + 2 * kv_heads) * d});
  check_vector(op, "lse", args.lse, DType::f32, b * args.heads * s);
  check_dropout(op, args.dropout);
  const AttentionBackwardLayout layout =
      attention_backward_layout(args.qkv.dtype, s, b, args.heads, d, kv_heads);
  check_workspace(op, context, layout.end);
  if (args.qkv.size() == 0) return;
  if (args.lengths) clear_padding(args.dqkv, args.lengths, context);
  launch_statistics(args, context);
  if (args.qkv.dtype == DType::f32) return launch_plain_backward(args, context);
  TRIREME_CUDA(
      cudaMemsetAsync(context.workspace + layout.turns, 0, layout.turns_bytes, context.stream));
  if (takes_boxes(args.qkv, d, args.dropout, {args.dout.data, args.dqkv.data}, context)) {
    dispatch_head(BoxBackwardHeads(), d, [&](auto padded) {
      launch_box_backward<decltype(padded)::value>(args, context);
    });
  } else {
    dispatch_head(TileHeads(), d,
                  [&](auto padded) { launch_backward<decltype(padded)::value>(args, context); });
  }
  if (kv_heads < args.heads) sum_groups(args, d, context.workspace + layout.key_gradients, context);
}

}  // namespace trireme::kernels::cuda
