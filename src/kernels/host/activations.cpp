#include "kernels/linear.hpp"

#include <cmath>

#include "kernels/host/compute.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

// With u = sqrt(2/pi) (x + 0.044715 x^3), gelu(x) = x/2 (1 + tanh(u)) = x s, where s = 1 / (1 + e)
// and e = exp(-2u): one exponential, and no cancellation for negative x.
template <typename T>
struct Gelu {
  static constexpr T kSlope = static_cast<T>(1.5957691216057307);  // 2 sqrt(2/pi)
  static constexpr T kCubic = static_cast<T>(0.044715);

  T e, s;

  explicit Gelu(T x) {
    const T argument = -kSlope * x * (1 + kCubic * x * x);
    // Kept finite, so that e * s is 1 and not infinity * 0 far left, where gelu' is 0 anyway.
    e = exponential(argument < T{80} ? argument : T{80});
    s = 1 / (1 + e);
  }

  T value(T x) const { return x * s; }
  T derivative(T x) const { return s + x * (e * s * s) * kSlope * (1 + 3 * kCubic * x * x); }
};

// gelu(x) = x c, where c = (1 + erf(x / sqrt(2))) / 2 is the normal distribution's share below x.
template <typename T>
struct ExactGelu {
  T c;

  explicit ExactGelu(T x) : c(T{0.5} * std::erfc(-x * static_cast<T>(0.7071067811865476))) {}

  T value(T x) const { return x * c; }
  T derivative(T x) const {
    return c + x * static_cast<T>(0.3989422804014327) * exponential(T{-0.5} * x * x);
  }
};

template <typename T>
struct Tanh {
  T y;

  explicit Tanh(T x) : y(std::tanh(x)) {}

  T value(T) const { return y; }
  T derivative(T) const { return 1 - y * y; }
};

template <typename T>
struct Silu {
  T s;

  explicit Silu(T x) : s(1 / (1 + exponential(-x))) {}

  T value(T x) const { return x * s; }
  T derivative(T x) const { return s * (1 + x * (1 - s)); }
};

template <typename Function, typename T>
void apply(const T* x, T* out, std::int64_t size) {
  parallel_blocks(size, 16384, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] = Function(x[i]).value(x[i]);
  });
}

template <typename Function, typename T>
void apply_gradient(const T* dout, const T* x, T* dx, std::int64_t size) {
  parallel_blocks(size, 16384, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) dx[i] = dout[i] * Function(x[i]).derivative(x[i]);
  });
}

template <typename Function, typename T>
void apply_gate(const GatedForward& args) {
  const std::int64_t n = args.out.shape[args.out.shape.rank() - 1];
  parallel_for(n > 0 ? args.out.size() / n : 0, [&](std::int64_t t) {
    const T* gate = args.x.as<T>() + t * 2 * n;
    const T* up = gate + n;
    T* out = args.out.as<T>() + t * n;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = Function(gate[i]).value(gate[i]) * up[i];
  });
}

template <typename Function, typename T>
void apply_gate_gradient(const GatedBackward& args) {
  const std::int64_t n = args.dout.shape[args.dout.shape.rank() - 1];
  parallel_for(n > 0 ? args.dout.size() / n : 0, [&](std::int64_t t) {
    const T* dout = args.dout.as<T>() + t * n;
    const T* x = args.x.as<T>() + t * 2 * n;
    T* dx = args.dx.as<T>() + t * 2 * n;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const T gate = x[i], up = x[n + i];
      const Function function(gate);
      dx[i] = dout[i] * up * function.derivative(gate);
      dx[n + i] = dout[i] * function.value(gate);
    }
  });
}

// Calls call(zero) with an object of the function's type, for T.
template <typename T, typename Call>
void with_function(Activation function, const Call& call) {
  switch (function) {
    case Activation::gelu_tanh:
      return call(Gelu<T>(T{0}));
    case Activation::gelu:
      return call(ExactGelu<T>(T{0}));
    case Activation::tanh:
      return call(Tanh<T>(T{0}));
    case Activation::silu:
      return call(Silu<T>(T{0}));
  }
  throw InternalError("unknown activation function {}", static_cast<int>(function));
}

}  // namespace

void gelu_forward(const GeluForward& args) {
  const char* op = "gelu_forward";
  const DType dtype = args.x.dtype;
  const auto [rows, n] = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, {rows, n});
  check_matrix(op, "out", args.out, dtype, {rows, n});
  TRIREME_CHECK(args.out.data != args.x.data || rows == 0, "{}: out may not be x, which is kept",
                op);
  using Args = GeluForward;
  compute(args, dtype, {&Args::x}, {&Args::out}, [](const Args& a, auto zero) {
    using T = decltype(zero);
    with_function<T>(a.function, [&](auto function) {
      apply<decltype(function)>(a.x.as<T>(), a.out.as<T>(), a.x.size());
    });
  });
}

void gelu_backward(const GeluBackward& args) {
  const char* op = "gelu_backward";
  const DType dtype = args.x.dtype;
  const auto [rows, n] = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, {rows, n});
  check_matrix(op, "dout", args.dout, dtype, {rows, n});
  check_matrix(op, "dx", args.dx, dtype, {rows, n});
  check_vector(op, "dbias", args.dbias, accumulation_type(dtype), n);
  using Args = GeluBackward;
  compute(args, dtype, {&Args::dout, &Args::x}, {&Args::dx}, [](const Args& a, auto zero) {
    using T = decltype(zero);
    with_function<T>(a.function, [&](auto function) {
      apply_gradient<decltype(function)>(a.dout.as<T>(), a.x.as<T>(), a.dx.as<T>(), a.x.size());
    });
  });
  bias_gradient({.dout = args.dx, .dbias = args.dbias});
  raise_amax(args.dx);
}

void gated_forward(const GatedForward& args) {
  const char* op = "gated_forward";
  const DType dtype = args.out.dtype;
  const auto [rows, n] = extents_of(op, "out", args.out);
  check_matrix(op, "out", args.out, dtype, {rows, n});
  check_matrix(op, "x", args.x, dtype, {rows, 2 * n});
  using Args = GatedForward;
  compute(args, dtype, {&Args::x}, {&Args::out}, [](const Args& a, auto zero) {
    using T = decltype(zero);
    with_function<T>(a.function, [&](auto function) { apply_gate<decltype(function), T>(a); });
  });
  raise_amax(args.out);
}

void gated_backward(const GatedBackward& args) {
  const char* op = "gated_backward";
  const DType dtype = args.dout.dtype;
  const auto [rows, n] = extents_of(op, "dout", args.dout);
  check_matrix(op, "dout", args.dout, dtype, {rows, n});
  check_matrix(op, "x", args.x, dtype, {rows, 2 * n});
  check_matrix(op, "dx", args.dx, dtype, {rows, 2 * n});
  using Args = GatedBackward;
  compute(args, dtype, {&Args::dout, &Args::x}, {&Args::dx}, [](const Args& a, auto zero) {
    using T = decltype(zero);
    with_function<T>(a.function,
                     [&](auto function) { apply_gate_gradient<decltype(function), T>(a); });
  });
  raise_amax(args.dx);
}

}  // namespace trireme::kernels::host
