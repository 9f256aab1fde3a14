#include "kernels/adamw.hpp"
#include "kernels/cuda/preconditions.hpp"
#include "kernels/cuda/types.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Bound by bytes: reads 4 and writes 2 an element.
template <typename T>
__global__ void cast_elements(const float* x, T* out, std::int64_t size) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += stride)
    out[i] = from_float<T>(x[i]);
}

}  // namespace

void cast(const Cast& args, const Context& context) {
  const std::int64_t size = args.x.size();
  check_vector("cast", "x", args.x, DType::f32, size);
  check_vector("cast", "out", args.out, args.out.dtype, size);
  if (size == 0) return;
  dispatch_cuda(args.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks = static_cast<unsigned>(
        std::min<std::int64_t>((size + kThreads - 1) / kThreads, 32 * context.multiprocessors));
    cast_elements<<<blocks, kThreads, 0, context.stream>>>(args.x.as<float>(), args.out.as<T>(),
                                                           size);
    TRIREME_CUDA_LAUNCHED(cast_elements);
  });
}

}  // namespace trireme::kernels::cuda
