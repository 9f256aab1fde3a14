#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/launchers.hpp"
#include "kernels/cuda/attention/parameters.cuh"

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
  float along = 0.0f;
  if (inside) {
    out += row * d;
    dout += row * d;
    if (sizes.access_bytes == 16) {
      constexpr int kSize = Pack<T>::kSize;
      for (int i = lane * kSize; i < d; i += kLanes * kSize) {
        const Pack<T> a = load_pack(out + i), b = load_pack(dout + i);
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          along = fmaf(to_float(a.values[j]), to_float(b.values[j]), along);
      }
    } else {
      for (int i = lane; i < d; i += kLanes)
        along = fmaf(to_float(out[i]), to_float(dout[i]), along);
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) along += __shfl_xor_sync(~0u, along, step);
  if (inside && lane == 0) {
    const std::int64_t at = row % tasks * sizes.s + row / tasks;
    statistics[at] = {lse[at] * kLog2E, along};
  }
}

}  // namespace

void launch_statistics(const AttentionBackward& args, const Context& context) {
  dispatch_cuda(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(args.out.data) && aligned16(args.dout.data);
    const AttentionSizes sizes = attention_sizes(args.qkv, args.heads, args.causal, aligned);
    const std::int64_t rows = std::int64_t{sizes.s} * sizes.b * sizes.heads;
    const AttentionBackwardLayout layout =
        attention_backward_layout(args.qkv.dtype, sizes.s, sizes.b, sizes.heads, sizes.d);
    launch(sum_rows<T>, (rows + kThreads / kLanes - 1) / (kThreads / kLanes), kThreads, 0, context,
           static_cast<const T*>(args.out.as<T>()), static_cast<const T*>(args.dout.as<T>()),
           static_cast<const float*>(args.lse.as<float>()),
           reinterpret_cast<RowStatistics*>(context.workspace + layout.statistics), sizes);
  });
}

}  // namespace trireme::kernels::cuda
