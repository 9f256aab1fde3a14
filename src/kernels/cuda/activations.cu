// Activation functions. Both passes are bound by bytes: forward reads and writes an element (4
// bytes in half precision), backward reads two and writes one (6); the column sums for dbias are
// made on the way.
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/linear.hpp"

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

/// Writes dx, and returns it to the column sums before it is rounded.
template <typename Function, typename T, int kWidth>
struct ActivationGradient {
  static constexpr int kUnroll = 3;
  struct Inputs {
    Elements<T, kWidth> dout, x;
  };

  const T* dout;
  const T* x;
  T* dx;
  float* amax;

  __device__ LargestMagnitude<T> largest() const { return LargestMagnitude<T>(amax); }
  __device__ Inputs load(std::int64_t offset) const {
    return {cuda::load<kWidth>(dout + offset), cuda::load<kWidth>(x + offset)};
  }
  __device__ Values<kWidth> compute(std::int64_t offset, const Inputs& inputs,
                                    LargestMagnitude<T>& largest) const {
    Values<kWidth> gradient = widen(inputs.dout);
    const Values<kWidth> values = widen(inputs.x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) gradient[i] *= Function(values[i]).derivative(values[i]);
    const Elements<T, kWidth> rounded = narrow<T>(gradient);
    largest.take(rounded);
    cuda::store(dx + offset, rounded);
    return gradient;
  }
};

/// f(gate) * up of the groups of row [2 n]: both halves of it are read.
template <typename Function, typename T, int kWidth>
struct GatedElements {
  static constexpr int kUnroll = 2;
  struct Inputs {
    Elements<T, kWidth> gate, up;
  };

  const T* x;
  T* out;
  float* amax;
  std::uint32_t n;

  __device__ LargestMagnitude<T> largest() const { return LargestMagnitude<T>(amax); }
  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    const T* from = x + std::int64_t{row} * 2 * n + column;
    return {cuda::load<kWidth>(from), cuda::load<kWidth>(from + n)};
  }
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs& inputs,
                        LargestMagnitude<T>& largest) const {
    const Values<kWidth> gate = widen(inputs.gate);
    Values<kWidth> values = widen(inputs.up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] *= Function(gate[i]).value(gate[i]);
    const Elements<T, kWidth> rounded = narrow<T>(values);
    largest.take(rounded);
    cuda::store(out + std::int64_t{row} * n + column, rounded);
  }
};

template <typename Function, typename T, int kWidth>
struct GatedGradient {
  static constexpr int kUnroll = 2;
  struct Inputs {
    Elements<T, kWidth> dout, gate, up;
  };

  const T* dout;
  const T* x;
  T* dx;
  float* amax;
  std::uint32_t n;

  __device__ LargestMagnitude<T> largest() const { return LargestMagnitude<T>(amax); }
  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    const T* from = x + std::int64_t{row} * 2 * n + column;
    return {cuda::load<kWidth>(dout + std::int64_t{row} * n + column), cuda::load<kWidth>(from),
            cuda::load<kWidth>(from + n)};
  }
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs& inputs,
                        LargestMagnitude<T>& largest) const {
    const Values<kWidth> gradient = widen(inputs.dout);
    Values<kWidth> gate = widen(inputs.gate), up = widen(inputs.up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const Function function(gate[i]);
      const float dgate = gradient[i] * up[i] * function.derivative(gate[i]);
      up[i] = gradient[i] * function.value(gate[i]);
      gate[i] = dgate;
    }
    T* to = dx + std::int64_t{row} * 2 * n + column;
    const Elements<T, kWidth> of_gate = narrow<T>(gate), of_up = narrow<T>(up);
    largest.take(of_gate);
    largest.take(of_up);
    cuda::store(to, of_gate);
    cuda::store(to + n, of_up);
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
      return call(FunctionType<Silu<T>>());
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
        add_column_sums<width>(ActivationGradient<Function, T, width>{dout, x, dx, args.dx.amax},
                               extents, args.dbias.as<float>(), context);
      });
    });
  });
}

void gated_forward(const GatedForward& args, const Context& context) {
  const char* op = "gated_forward";
  const DType dtype = args.out.dtype;
  const Extents extents = extents_of(op, "out", args.out);
  const std::int64_t n = extents.columns;
  check_matrix(op, "out", args.out, dtype, extents);
  check_matrix(op, "x", args.x, dtype, {extents.rows, 2 * n});
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    T* out = args.out.as<T>();
    dispatch_function<T>(args.function, [&](auto function) {
      using Function = typename decltype(function)::type;
      dispatch_width<T>(rows_aligned16<T>(n, x, out), [&](auto width) {
        launch_rows<width>(
            op,
            GatedElements<Function, T, width>{x, out, args.out.amax, static_cast<std::uint32_t>(n)},
            extents, context);
      });
    });
  });
}

void gated_backward(const GatedBackward& args, const Context& context) {
  const char* op = "gated_backward";
  const DType dtype = args.dout.dtype;
  const Extents extents = extents_of(op, "dout", args.dout);
  const std::int64_t n = extents.columns;
  check_matrix(op, "dout", args.dout, dtype, extents);
  check_matrix(op, "x", args.x, dtype, {extents.rows, 2 * n});
  check_matrix(op, "dx", args.dx, dtype, {extents.rows, 2 * n});
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    const T* x = args.x.as<T>();
    T* dx = args.dx.as<T>();
    dispatch_function<T>(args.function, [&](auto function) {
      using Function = typename decltype(function)::type;
      dispatch_width<T>(rows_aligned16<T>(n, dout, x, dx), [&](auto width) {
        launch_rows<width>(op,
                           GatedGradient<Function, T, width>{dout, x, dx, args.dx.amax,
                                                             static_cast<std::uint32_t>(n)},
                           extents, context);
      });
    });
  });
}

// ---- gradients of biases, bound by bytes: every element of dout is read once

namespace {

template <typename T, int kWidth>
struct PlainElements {
  static constexpr int kUnroll = 8;
  using Inputs = Elements<T, kWidth>;

  const T* dout;
  float* amax;

  __device__ LargestMagnitude<T> largest() const { return LargestMagnitude<T>(amax); }
  __device__ Inputs load(std::int64_t offset) const { return cuda::load<kWidth>(dout + offset); }
  __device__ Values<kWidth> compute(std::int64_t, const Inputs& inputs,
                                    LargestMagnitude<T>& largest) const {
    largest.take(inputs);
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
      add_column_sums<width>(PlainElements<T, width>{dout, args.dout.amax}, extents,
                             args.dbias.as<float>(), context);
    });
  });
}

}  // namespace trireme::kernels::cuda
