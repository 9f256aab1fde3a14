#include "kernels/dropout.hpp"

#include <cstring>

#include "kernels/host/compute.hpp"
#include "kernels/host/dropout_mask.hpp"
#include "kernels/layernorm.hpp"
#include "kernels/preconditions.hpp"
#include "kernels/random.hpp"

namespace trireme::kernels::host {

void check_dropout(const char* op, const Dropout& dropout) {
  TRIREME_CHECK(dropout.probability >= 0.0 && dropout.probability < 1.0,
                "{}: dropout probability {} is not in [0, 1)", op, dropout.probability);
}

namespace {

template <typename T>
void scale_gradient(const DropoutBackward& args) {
  const std::int64_t b = args.dout.shape[1], h = args.dout.shape[2];
  const T* dout = args.dout.as<T>();
  T* dx = args.dx.as<T>();
  if (args.dropout.probability == 0.0) {
    if (dx != dout)
      parallel_for(args.dout.shape[0], [&](std::int64_t i) {
        std::memcpy(dx + i * b * h, dout + i * b * h, b * h * sizeof(T));
      });
    return;
  }
  parallel_for(args.dout.shape[0] * b, [&](std::int64_t t) {
    const T* factors = draw_row<T>(args.dropout, args.first_position + t / b, t % b, h);
    const T* in = dout + t * h;
    T* out = dx + t * h;
#pragma omp simd
    for (std::int64_t i = 0; i < h; ++i) out[i] = in[i] * factors[i];
  });
}

template <typename T>
void add_to_residual(const BiasDropoutResidual& args) {
  const std::int64_t b = args.x.shape[1], h = args.x.shape[2];
  const T* bias = args.bias ? args.bias.as<T>() : nullptr;
  const bool drops = args.dropout.probability > 0.0;
  parallel_for(args.x.shape[0] * b, [&](std::int64_t t) {
    const T* x = args.x.as<T>() + t * h;
    const T* residual = args.residual.as<T>() + t * h;
    T* out = args.out.as<T>() + t * h;
    if (drops && !bias) {
      const T* factors = draw_row<T>(args.dropout, args.first_position + t / b, t % b, h);
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) out[i] = residual[i] + x[i] * factors[i];
    } else if (!bias) {
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) out[i] = residual[i] + x[i];
    } else if (drops) {
      const T* factors = draw_row<T>(args.dropout, args.first_position + t / b, t % b, h);
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) out[i] = residual[i] + (x[i] + bias[i]) * factors[i];
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) out[i] = residual[i] + (x[i] + bias[i]);
    }
  });
}

}  // namespace

void dropout_backward(const DropoutBackward& args) {
  const char* op = "dropout_backward";
  const DType dtype = args.dout.dtype;
  TRIREME_CHECK(args.dout.shape.rank() == 3, "{}: dout is {}, expected [s, b, h]", op,
                to_string(args.dout.shape));
  check_shape(op, "dout", args.dout, dtype, args.dout.shape);
  check_shape(op, "dx", args.dx, dtype, args.dout.shape);
  check_dropout(op, args.dropout);
  using Args = DropoutBackward;
  compute(args, dtype, {&Args::dout}, {&Args::dx},
          [](const Args& a, auto zero) { scale_gradient<decltype(zero)>(a); });
}

void bias_dropout_residual(const BiasDropoutResidual& args) {
  const char* op = "bias_dropout_residual";
  const DType dtype = args.x.dtype;
  TRIREME_CHECK(args.x.shape.rank() == 3, "{}: x is {}, expected [s, b, h]", op,
                to_string(args.x.shape));
  check_shape(op, "x", args.x, dtype, args.x.shape);
  check_shape(op, "residual", args.residual, dtype, args.x.shape);
  check_shape(op, "out", args.out, dtype, args.x.shape);
  if (args.bias) check_vector(op, "bias", args.bias, dtype, args.x.shape[2]);
  check_dropout(op, args.dropout);
  using Args = BiasDropoutResidual;
  compute(args, dtype, {&Args::x, &Args::bias, &Args::residual}, {&Args::out},
          [](const Args& a, auto zero) { add_to_residual<decltype(zero)>(a); });
}

void bias_dropout_residual_norm(const BiasDropoutResidualNorm& args) {
  bias_dropout_residual(args.sum);
  layernorm_forward({.x = args.sum.out,
                     .weight = args.weight,
                     .bias = args.norm_bias,
                     .out = args.norm,
                     .mean = args.mean,
                     .rstd = args.rstd,
                     .eps = args.eps,
                     .kind = args.kind});
}

void random_normal(const RandomNormal& args) {
  const Extents extents = extents_of("random_normal", "out", args.out);
  check_matrix("random_normal", "out", args.out, args.out.dtype, extents);
  compute(args, args.out.dtype, {}, {&RandomNormal::out}, [&](const RandomNormal& it, auto zero) {
    using T = decltype(zero);
    T* out = it.out.as<T>();
    parallel_for(it.out.size(), [&](std::int64_t i) {
      out[i] = static_cast<T>(random_normal_value(it, extents.columns, i));
    });
  });
}

}  // namespace trireme::kernels::host
