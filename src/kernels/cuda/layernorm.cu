// Bound by bytes: an element is read once and written once (4 bytes in half precision).
#include "kernels/layernorm.hpp"

#include "kernels/cuda/common/normalize.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename T, int kWidth>
struct PlainRows {
  using Inputs = Elements<T, kWidth>;

  const T* x;
  int h;

  __device__ Inputs load(std::int64_t row, int column) const {
    return cuda::load<kWidth>(x + row * h + column);
  }
  __device__ Elements<T, kWidth> finish(std::int64_t, int, const Inputs& inputs) const {
    return inputs;
  }
};

}  // namespace

void layernorm_forward(const LayerNormForward& args, const Context& context) {
  const char* op = "layernorm_forward";
  const DType dtype = args.x.dtype;
  const Extents extents = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, extents);
  check_normalization(op, dtype, extents, args.weight, args.bias, args.out, args.mean, args.rstd);
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    const Normalization<T> norm{args.weight.as<T>(),   args.bias.as<T>(),
                                args.out.as<T>(),      args.mean.as<float>(),
                                args.rstd.as<float>(), static_cast<float>(args.eps)};
    const bool vectors = rows_aligned16<T>(extents.columns, x, norm.weight, norm.bias, norm.out);
    dispatch_width<T>(vectors, [&](auto width) {
      const PlainRows<T, width> rows{x, static_cast<int>(extents.columns)};
      launch_normalize<width>(rows, norm, extents, context);
    });
  });
}

}  // namespace trireme::kernels::cuda
