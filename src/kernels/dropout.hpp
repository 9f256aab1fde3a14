// Dropout keyed by the logical element.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/layernorm.hpp"

namespace trireme::kernels {

/// Dropout of one site of one micro-batch. Sample j of the micro-batch is sample `first_sample + j`
/// of the run; element numbers are those of DropoutStream. Kept elements are scaled by 1 / (1 -
/// probability); probability 0 keeps everything unchanged.
struct Dropout {
  double probability = 0.0;
  std::uint64_t seed = 0;
  std::uint64_t first_sample = 0;
  std::uint32_t layer = 0;
  DropoutSite site = DropoutSite::embedding;
};

/// Writes dx = mask * dout / (1 - p), the same mask as the forward pass drew. dx may be dout.
/// dout, dx [s, b, h]: positions first_position .. first_position + s - 1 of each sample.
struct DropoutBackward {
  Tensor dout;
  Tensor dx;
  Dropout dropout;
  std::int64_t first_position = 0;
};

/// Writes out = residual + dropout(x + bias): the end of a transformer sublayer. out may be
/// residual. x, residual, out [s, b, h]: positions first_position .. first_position + s - 1 of each
/// sample; bias [h], or none.
struct BiasDropoutResidual {
  Tensor x;
  Tensor bias;
  Tensor residual;
  Tensor out;
  Dropout dropout;
  std::int64_t first_position = 0;
};

/// BiasDropoutResidual, then the normalisation of its result (LayerNormForward): writes out and
/// norm = (out - mean) * rstd * weight + norm_bias. weight, norm_bias [h]; norm like out; mean,
/// rstd [s b] of the accumulation type; NormKind::rms has no norm_bias and no mean.
struct BiasDropoutResidualNorm {
  BiasDropoutResidual sum;
  Tensor weight;
  Tensor norm_bias;
  Tensor norm;
  Tensor mean;
  Tensor rstd;
  double eps = 1e-5;
  NormKind kind = NormKind::layer;
};

namespace host {
void dropout_backward(const DropoutBackward& args);
void bias_dropout_residual(const BiasDropoutResidual& args);
void bias_dropout_residual_norm(const BiasDropoutResidualNorm& args);
}  // namespace host

namespace cuda {
void dropout_backward(const DropoutBackward& args, const Context& context);
void bias_dropout_residual(const BiasDropoutResidual& args, const Context& context);
void bias_dropout_residual_norm(const BiasDropoutResidualNorm& args, const Context& context);
}  // namespace cuda
}  // namespace trireme::kernels
