// Bound by bytes: reads 4 and writes 2 an element, or the other way round.
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/optimizer.hpp"

namespace trireme::kernels::cuda {
namespace {

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
