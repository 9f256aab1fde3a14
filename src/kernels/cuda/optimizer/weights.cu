// Initial weights, and weights in another type.
#include <algorithm>

#include "core/cuda/check.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/optimizer.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 8;

// Bound by fp64 arithmetic, of some 150 operations an element: once a run.
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

namespace {

// Bound by bytes: reads 4 and writes 2 an element, or the other way round.
template <typename From, typename To, int kWidth>
struct Converted {
  static constexpr int kUnroll = 2;
  using Inputs = Elements<From, kWidth>;

  const From* x;
  To* out;

  __device__ Inputs load(std::int64_t i) const { return cuda::load<kWidth>(x + i * kWidth); }
  __device__ void store(std::int64_t i, const Inputs& inputs) const {
    cuda::store(out + i * kWidth, narrow<To>(widen(inputs)));
  }
};

template <typename From, typename To>
void convert(const Cast& args, const Context& context) {
  using Shorter = std::conditional_t<sizeof(From) < sizeof(To), From, To>;
  const std::int64_t size = args.x.size();
  const From* x = args.x.as<From>();
  To* out = args.out.as<To>();
  dispatch_width<Shorter>(rows_aligned16<Shorter>(size, x, out), [&](auto width) {
    launch_elements(Converted<From, To, width>{x, out}, size / width, context);
  });
}

}  // namespace

void cast(const Cast& args, const Context& context) {
  const bool widens = args.out.dtype == DType::f32;
  const std::int64_t size = args.x.size();
  check_vector("cast", "out", args.out, args.out.dtype, size);
  check_vector("cast", "x", args.x, widens ? args.x.dtype : DType::f32, size);
  dispatch_cuda(widens ? args.x.dtype : args.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (widens)
      convert<T, float>(args, context);
    else
      convert<float, T>(args, context);
  });
}

}  // namespace trireme::kernels::cuda
