// Bound by bytes: reads 4 and writes 2 an element, or the other way round.
#include "kernels/adamw.hpp"
#include "kernels/cuda/common/elementwise.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename T, int kWidth>
struct Rounded {
  static constexpr int kUnroll = 2;
  using Inputs = Elements<float, kWidth>;

  const float* x;
  T* out;

  __device__ Inputs load(std::int64_t i) const { return cuda::load<kWidth>(x + i * kWidth); }
  __device__ void store(std::int64_t i, const Inputs& inputs) const {
    cuda::store(out + i * kWidth, narrow<T>(widen(inputs)));
  }
};

template <typename T, int kWidth>
struct Widened {
  static constexpr int kUnroll = 2;
  using Inputs = Elements<T, kWidth>;

  const T* x;
  float* out;

  __device__ Inputs load(std::int64_t i) const { return cuda::load<kWidth>(x + i * kWidth); }
  __device__ void store(std::int64_t i, const Inputs& inputs) const {
    cuda::store(out + i * kWidth, narrow<float>(widen(inputs)));
  }
};

/// For half types: to fp32.
void widen_all(const Cast& args, const Context& context) {
  const std::int64_t size = args.x.size();
  dispatch_cuda(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    float* out = args.out.as<float>();
    dispatch_width<T>(rows_aligned16<T>(size, x, out), [&](auto width) {
      launch_elements(Widened<T, width>{x, out}, size / width, context);
    });
  });
}

}  // namespace

void cast(const Cast& args, const Context& context) {
  const std::int64_t size = args.x.size();
  check_vector("cast", "out", args.out, args.out.dtype, size);
  if (args.out.dtype == DType::f32 && args.x.dtype != DType::f32) {
    check_vector("cast", "x", args.x, args.x.dtype, size);
    return widen_all(args, context);
  }
  check_vector("cast", "x", args.x, DType::f32, size);
  dispatch_cuda(args.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const float* x = args.x.as<float>();
    T* out = args.out.as<T>();
    dispatch_width<T>(rows_aligned16<T>(size, x, out), [&](auto width) {
      launch_elements(Rounded<T, width>{x, out}, size / width, context);
    });
  });
}

}  // namespace trireme::kernels::cuda
