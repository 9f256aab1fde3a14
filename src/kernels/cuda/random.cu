// Bound by fp64 arithmetic, of some 150 operations an element: once a run.
#include "kernels/random.hpp"

#include <algorithm>

#include "core/cuda/check.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 8;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    draw_normal(const RandomNormal args, std::int64_t columns, std::int64_t size) {
  T* out = static_cast<T*>(args.out.data);
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += stride)
    out[i] = from_float<T>(static_cast<float>(random_normal_value(args, columns, i)));
}

}  // namespace

void random_normal(const RandomNormal& args, const Context& context) {
  const Extents extents = extents_of("random_normal", "out", args.out);
  check_matrix("random_normal", "out", args.out, args.out.dtype, extents);
  const std::int64_t size = args.out.size();
  if (size == 0) return;
  const std::int64_t blocks =
      std::min((size + kThreads - 1) / kThreads, std::int64_t{context.sms} * kBlocksPerSm);
  dispatch_cuda(args.out.dtype, [&](auto zero) {
    draw_normal<decltype(zero)><<<static_cast<unsigned>(blocks), kThreads, 0, context.stream>>>(
        args, extents.columns, size);
    TRIREME_CUDA_LAUNCHED(draw_normal);
  });
}

}  // namespace trireme::kernels::cuda
