#include "kernels/gelu.hpp"

#include "kernels/host/math.hpp"
#include "kernels/host/storage.hpp"
#include "kernels/host/threads.hpp"
#include "kernels/linear.hpp"
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

  T derivative(T x) const { return s + x * (e * s * s) * kSlope * (1 + 3 * kCubic * x * x); }
};

template <typename T>
void gelu_elements(const T* x, T* out, std::int64_t size) {
  parallel_blocks(size, 16384, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] = x[i] * Gelu<T>(x[i]).s;
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
    gelu_elements(a.x.as<T>(), a.out.as<T>(), a.x.size());
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
    gelu_gradient(a.dout.as<T>(), a.x.as<T>(), a.dx.as<T>(), a.x.size());
  });
  bias_gradient({.dout = args.dx, .dbias = args.dbias});
}

}  // namespace trireme::kernels::host
