#include <cmath>
#include <cstring>

#include "kernels/host/compute.hpp"
#include "kernels/linear.hpp"
#include "kernels/norms.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

/// Writes a row of the result from its statistics.
template <typename T>
void scale_row(const T* x, T center, T scale, const T* weight, const T* bias, std::int64_t h,
               T* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < h; ++i) out[i] = (x[i] - center) * scale * weight[i] + bias[i];
}

template <typename T>
void scale_rms_row(const T* x, T scale, const T* weight, std::int64_t h, T* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < h; ++i) out[i] = x[i] * scale * weight[i];
}

template <typename T>
void normalize_rms(const LayerNormForward& args, std::int64_t rows, std::int64_t h) {
  parallel_for(rows, [&](std::int64_t t) {
    const T* x = args.x.as<T>() + t * h;
    const double squares =
        sum_of(h, [&](std::int64_t i) { return static_cast<double>(x[i]) * x[i]; });
    const T rstd = static_cast<T>(1.0 / std::sqrt(squares / h + args.eps));
    args.rstd.as<T>()[t] = rstd;
    scale_rms_row(x, rstd, args.weight.as<T>(), h, args.out.as<T>() + t * h);
  });
}

template <typename T>
void normalize(const LayerNormForward& args, std::int64_t rows, std::int64_t h) {
  if (args.kind == NormKind::rms) return normalize_rms<T>(args, rows, h);
  const T* weight = args.weight.as<T>();
  const T* bias = args.bias.as<T>();
  T* mean = args.mean.as<T>();
  T* rstd = args.rstd.as<T>();
  parallel_for(rows, [&](std::int64_t t) {
    const T* x = args.x.as<T>() + t * h;
    T* out = args.out.as<T>() + t * h;
    const double average = sum_of(h, [&](std::int64_t i) { return x[i]; }) / h;
    const double variance = sum_of(h,
                                   [&](std::int64_t i) {
                                     const double distance = x[i] - average;
                                     return distance * distance;
                                   }) /
                            h;
    mean[t] = static_cast<T>(average);
    rstd[t] = static_cast<T>(1.0 / std::sqrt(variance + args.eps));
    scale_row(x, mean[t], rstd[t], weight, bias, h, out);
  });
}

template <typename T>
void recompute_output(const LayerNormBackward& args, std::int64_t rows, std::int64_t h) {
  parallel_for(rows, [&](std::int64_t t) {
    if (args.kind == NormKind::rms)
      return scale_rms_row(args.x.as<T>() + t * h, args.rstd.as<T>()[t], args.weight.as<T>(), h,
                           args.out.as<T>() + t * h);
    scale_row(args.x.as<T>() + t * h, args.mean.as<T>()[t], args.rstd.as<T>()[t],
              args.weight.as<T>(), args.bias.as<T>(), h, args.out.as<T>() + t * h);
  });
}

template <typename T>
void add_input_gradient(const LayerNormBackward& args, std::int64_t rows, std::int64_t h) {
  const T* weight = args.weight.as<T>();
  parallel_for(rows, [&](std::int64_t t) {
    const T* x = args.x.as<T>() + t * h;
    const T* dout = args.dout.as<T>() + t * h;
    T* dx = args.dx.as<T>() + t * h;
    const T center = args.mean.as<T>()[t], scale = args.rstd.as<T>()[t];
    // Means over the row of g = dout * weight and of g * normalized x, which the statistics' own
    // dependence on x takes out of the gradient.
    const auto dnorm_mean = static_cast<T>(
        sum_of(h, [&](std::int64_t i) { return static_cast<double>(dout[i]) * weight[i]; }) / h);
    const auto dnorm_norm_mean = static_cast<T>(
        sum_of(h,
               [&](std::int64_t i) {
                 return static_cast<double>(dout[i]) * weight[i] * ((x[i] - center) * scale);
               }) /
        h);
#pragma omp simd
    for (std::int64_t i = 0; i < h; ++i)
      dx[i] +=
          scale * (dout[i] * weight[i] - dnorm_mean - (x[i] - center) * scale * dnorm_norm_mean);
  });
}

template <typename T>
void add_rms_gradients(const LayerNormBackward& args, std::int64_t rows, std::int64_t h) {
  const T* weight = args.weight.as<T>();
  const T* rstd = args.rstd.as<T>();
  parallel_for(rows, [&](std::int64_t t) {
    const T* x = args.x.as<T>() + t * h;
    const T* dout = args.dout.as<T>() + t * h;
    T* dx = args.dx.as<T>() + t * h;
    const T scale = rstd[t];
    const auto dnorm_norm_mean =
        static_cast<T>(sum_of(h,
                              [&](std::int64_t i) {
                                return static_cast<double>(dout[i]) * weight[i] * (x[i] * scale);
                              }) /
                       h);
#pragma omp simd
    for (std::int64_t i = 0; i < h; ++i)
      dx[i] += scale * (dout[i] * weight[i] - x[i] * scale * dnorm_norm_mean);
  });
  const T* x = args.x.as<T>();
  const T* dout = args.dout.as<T>();
  add_column_sums(rows, h, args.dweight.as<T>(), [&](std::int64_t t, std::int64_t i) {
    return dout[t * h + i] * (x[t * h + i] * rstd[t]);
  });
}

template <typename T>
void add_parameter_gradients(const LayerNormBackward& args, std::int64_t rows, std::int64_t h) {
  const T* x = args.x.as<T>();
  const T* dout = args.dout.as<T>();
  const T* mean = args.mean.as<T>();
  const T* rstd = args.rstd.as<T>();
  add_column_sums(rows, h, args.dbias.as<T>(),
                  [&](std::int64_t t, std::int64_t i) { return dout[t * h + i]; });
  add_column_sums(rows, h, args.dweight.as<T>(), [&](std::int64_t t, std::int64_t i) {
    return dout[t * h + i] * ((x[t * h + i] - mean[t]) * rstd[t]);
  });
}

}  // namespace

void layernorm_forward(const LayerNormForward& args) {
  const char* op = "layernorm_forward";
  const DType dtype = args.x.dtype;
  const auto [rows, h] = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, {rows, h});
  check_matrix(op, "out", args.out, dtype, {rows, h});
  check_vector(op, "weight", args.weight, dtype, h);
  if (args.kind == NormKind::layer) {
    check_vector(op, "bias", args.bias, dtype, h);
    check_vector(op, "mean", args.mean, accumulation_type(dtype), rows);
  }
  check_vector(op, "rstd", args.rstd, accumulation_type(dtype), rows);
  using Args = LayerNormForward;
  compute(
      args, dtype, {&Args::x, &Args::weight, &Args::bias}, {&Args::out},
      [rows = rows, h = h](const Args& a, auto zero) { normalize<decltype(zero)>(a, rows, h); });
  raise_amax(args.out);
}

void layernorm_backward(const LayerNormBackward& args) {
  const char* op = "layernorm_backward";
  const DType dtype = args.x.dtype;
  const auto [rows, h] = extents_of(op, "x", args.x);
  check_matrix(op, "x", args.x, dtype, {rows, h});
  check_matrix(op, "dout", args.dout, dtype, {rows, h});
  check_matrix(op, "dx", args.dx, dtype, {rows, h});
  check_vector(op, "weight", args.weight, dtype, h);
  check_vector(op, "dweight", args.dweight, accumulation_type(dtype), h);
  const bool has_mean = args.kind == NormKind::layer;
  if (has_mean) check_vector(op, "dbias", args.dbias, accumulation_type(dtype), h);
  if (args.dx_sum) check_vector(op, "dx_sum", args.dx_sum, accumulation_type(dtype), h);
  if (args.out) {
    check_matrix(op, "out", args.out, dtype, {rows, h});
    if (has_mean) check_vector(op, "bias", args.bias, dtype, h);
  }
  if (has_mean) check_vector(op, "mean", args.mean, accumulation_type(dtype), rows);
  check_vector(op, "rstd", args.rstd, accumulation_type(dtype), rows);
  using Args = LayerNormBackward;
  compute(args, dtype, {&Args::dout, &Args::x, &Args::weight, &Args::dx, &Args::bias},
          {&Args::dx, &Args::out}, [rows = rows, h = h](const Args& a, auto zero) {
            using T = decltype(zero);
            if (a.out) recompute_output<T>(a, rows, h);
            if (a.kind == NormKind::rms) {
              add_rms_gradients<T>(a, rows, h);
            } else {
              add_input_gradient<T>(a, rows, h);
              add_parameter_gradients<T>(a, rows, h);
            }
            if (!a.dx_sum) return;
            const T* dx = a.dx.template as<T>();
            add_column_sums(rows, h, a.dx_sum.template as<T>(),
                            [=](std::int64_t t, std::int64_t i) { return dx[t * h + i]; });
          });
  raise_amax(args.dx);
}

// ---- dropout

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
  raise_amax(args.dx);
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
  TRIREME_CHECK(!args.terms, "bias_dropout_residual_norm: the host reaches no peer's terms");
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

}  // namespace trireme::kernels::host
