#include "kernels/bias_gelu.hpp"

#include "kernels/host/checks.hpp"
#include "kernels/host/columns.hpp"
#include "kernels/host/math.hpp"
#include "kernels/host/threads.hpp"

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

  T derivative(T x) const { return s + x * (e * s * s) * kSlope * (1 + 3 * kCubic * x * x); }
};

template <typename T>
void add_bias_to_rows(T* x, const T* bias, std::int64_t rows, std::int64_t n) {
  parallel_for(rows, [&](std::int64_t t) {
    T* row = x + t * n;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) row[i] += bias[i];
  });
}

template <typename T>
void bias_gelu_rows(T* x, const T* bias, T* out, std::int64_t rows, std::int64_t n) {
  parallel_for(rows, [&](std::int64_t t) {
    T* row = x + t * n;
    T* result = out + t * n;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const T value = row[i] + bias[i];
      row[i] = value;
      result[i] = value * Gelu<T>(value).s;
    }
  });
}

template <typename T>
void gelu_gradient(const T* dout, const T* x, T* dx, std::int64_t size) {
  parallel_blocks(size, 16384, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) dx[i] = dout[i] * Gelu<T>(x[i]).derivative(x[i]);
  });
}

}  // namespace

void add_bias(const AddBias& args) {
  const DType dtype = args.x.dtype;
  const auto [rows, n] = extents_of("add_bias", "x", args.x);
  check_matrix("add_bias", "x", args.x, dtype, rows, n);
  check_vector("add_bias", "bias", args.bias, dtype, n);
  dispatch(dtype, [&, rows = rows, n = n](auto zero) {
    using T = decltype(zero);
    add_bias_to_rows(args.x.as<T>(), args.bias.as<T>(), rows, n);
  });
}

void bias_gradient(const BiasGradient& args) {
  const DType dtype = args.dout.dtype;
  const auto [rows, n] = extents_of("bias_gradient", "dout", args.dout);
  check_matrix("bias_gradient", "dout", args.dout, dtype, rows, n);
  check_vector("bias_gradient", "dbias", args.dbias, dtype, n);
  dispatch(dtype, [&, rows = rows, n = n](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    add_column_sums(rows, n, args.dbias.as<T>(),
                    [&](std::int64_t t, std::int64_t i) { return dout[t * n + i]; });
  });
}

void bias_gelu_forward(const BiasGeluForward& args) {
  const char* op = "bias_gelu_forward";
  const DType dtype = args.x.dtype;
  const auto [rows, n] = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, rows, n);
  check_matrix(op, "out", args.out, dtype, rows, n);
  check_vector(op, "bias", args.bias, dtype, n);
  TRIREME_CHECK(args.out.data != args.x.data || rows == 0, "{}: out may not be x, which is kept",
                op);
  dispatch(dtype, [&, rows = rows, n = n](auto zero) {
    using T = decltype(zero);
    bias_gelu_rows(args.x.as<T>(), args.bias.as<T>(), args.out.as<T>(), rows, n);
  });
}

void gelu_backward(const GeluBackward& args) {
  const char* op = "gelu_backward";
  const DType dtype = args.x.dtype;
  const auto [rows, n] = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, rows, n);
  check_matrix(op, "dout", args.dout, dtype, rows, n);
  check_matrix(op, "dx", args.dx, dtype, rows, n);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    gelu_gradient(args.dout.as<T>(), args.x.as<T>(), args.dx.as<T>(), args.x.size());
  });
}

}  // namespace trireme::kernels::host
