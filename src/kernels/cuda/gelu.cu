// Both passes are bound by bytes: forward reads and writes an element (4 bytes in half precision),
// backward reads two and writes one (6); the column sums for dbias are made on the way.
#include "kernels/gelu.hpp"

#include "kernels/cuda/common/columns.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename Function, typename T, int kWidth>
struct ActivationElements {
  static constexpr int kUnroll = 4;
  using Inputs = Elements<T, kWidth>;

  const T* x;
  T* out;

  __device__ Inputs load(std::int64_t i) const { return cuda::load<kWidth>(x + i * kWidth); }
  __device__ void store(std::int64_t i, const Inputs& inputs) const {
    Values<kWidth> values = widen(inputs);
#pragma unroll
    for (float& value : values.values) value = Function(value).value(value);
    cuda::store(out + i * kWidth, narrow<T>(values));
  }
};

/// Writes dx, and hands it on to the column sums before it is rounded.
template <typename Function, typename T, int kWidth>
struct ActivationGradient {
  static constexpr int kUnroll = 3;
  struct Inputs {
    Elements<T, kWidth> dout, x;
  };

  const T* dout;
  const T* x;
  T* dx;

  __device__ Inputs load(std::int64_t offset) const {
    return {cuda::load<kWidth>(dout + offset), cuda::load<kWidth>(x + offset)};
  }
  __device__ Values<kWidth> compute(std::int64_t offset, const Inputs& inputs) const {
    Values<kWidth> gradient = widen(inputs.dout);
    const Values<kWidth> values = widen(inputs.x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) gradient[i] *= Function(values[i]).derivative(values[i]);
    cuda::store(dx + offset, narrow<T>(gradient));
    return gradient;
  }
};

template <typename Function>
struct FunctionType {
  using type = Function;
};

/// Calls call(FunctionType<F>()) with the activation function F for results of type T.
template <typename T, typename Call>
void dispatch_function(Activation function, const Call& call) {
  switch (function) {
    case Activation::gelu_tanh:
      return call(FunctionType<Gelu<T>>());
    case Activation::gelu:
      return call(FunctionType<ExactGelu<T>>());
    case Activation::tanh:
      return call(FunctionType<Tanh>());
    case Activation::silu:
      throw DeckError("the SiLU is not built for GPUs yet: say run.device = host");
  }
  throw InternalError("unknown activation function {}", static_cast<int>(function));
}

}  // namespace

void gelu_forward(const GeluForward& args, const Context& context) {
  const char* op = "gelu_forward";
  const DType dtype = args.x.dtype;
  const Extents extents = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, extents);
  check_matrix(op, "out", args.out, dtype, extents);
  const std::int64_t size = args.x.size();
  TRIREME_CHECK(args.out.data != args.x.data || size == 0, "{}: out may not be x, which is kept",
                op);
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    T* out = args.out.as<T>();
    dispatch_function<T>(args.function, [&](auto function) {
      using Function = typename decltype(function)::type;
      dispatch_width<T>(rows_aligned16<T>(size, x, out), [&](auto width) {
        launch_elements(ActivationElements<Function, T, width>{x, out}, size / width, context);
      });
    });
  });
}

void gelu_backward(const GeluBackward& args, const Context& context) {
  const char* op = "gelu_backward";
  const DType dtype = args.x.dtype;
  const Extents extents = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, extents);
  check_matrix(op, "dout", args.dout, dtype, extents);
  check_matrix(op, "dx", args.dx, dtype, extents);
  check_vector(op, "dbias", args.dbias, DType::f32, extents.columns);
  check_workspace(op, context, gelu_backward_workspace(extents.columns));
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    const T* x = args.x.as<T>();
    T* dx = args.dx.as<T>();
    dispatch_function<T>(args.function, [&](auto function) {
      using Function = typename decltype(function)::type;
      dispatch_width<T>(rows_aligned16<T>(extents.columns, dout, x, dx), [&](auto width) {
        add_column_sums<width>(ActivationGradient<Function, T, width>{dout, x, dx}, extents,
                               args.dbias.as<float>(), context);
      });
    });
  });
}

void gated_forward(const GatedForward&, const Context&) {
  throw DeckError("gated MLPs are not built for GPUs yet: say run.device = host");
}

void gated_backward(const GatedBackward&, const Context&) {
  throw DeckError("gated MLPs are not built for GPUs yet: say run.device = host");
}

}  // namespace trireme::kernels::cuda
