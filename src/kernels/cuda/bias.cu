// Bound by bytes: every element of dout is read once.
#include "kernels/linear.hpp"

#include "kernels/cuda/common/columns.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename T, int kWidth>
struct PlainElements {
  static constexpr int kUnroll = 8;
  using Inputs = Elements<T, kWidth>;

  const T* dout;

  __device__ Inputs load(std::int64_t offset) const { return cuda::load<kWidth>(dout + offset); }
  __device__ Values<kWidth> compute(std::int64_t, const Inputs& inputs) const {
    return widen(inputs);
  }
};

}  // namespace

void bias_gradient(const BiasGradient& args, const Context& context) {
  const char* op = "bias_gradient";
  const DType dtype = args.dout.dtype;
  const Extents extents = extents_of(op, "dout", args.dout);
  check_matrix(op, "dout", args.dout, dtype, extents);
  check_vector(op, "dbias", args.dbias, DType::f32, extents.columns);
  check_workspace(op, context, bias_gradient_workspace(extents.columns));
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    dispatch_width<T>(rows_aligned16<T>(extents.columns, dout), [&](auto width) {
      add_column_sums<width>(PlainElements<T, width>{dout}, extents, args.dbias.as<float>(),
                             context);
    });
  });
}

}  // namespace trireme::kernels::cuda
