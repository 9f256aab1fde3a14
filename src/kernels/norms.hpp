// Layer and RMS normalisation; and what comes before it at the end of a sublayer: bias, dropout,
// residual sum.
#pragma once

#include <cstdint>

#include "core/peer_terms.hpp"
#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

namespace cuda {
/// The widest rows that the kernels for GPUs normalise.
inline constexpr std::int64_t kMaxRowColumns = 16384;
}  // namespace cuda

/// `layer`: Ba, Kiros, Hinton, "Layer normalization" (2016). `rms`: without mean and bias, rstd = 1
/// / sqrt(mean(x^2) + eps) and out = x * rstd * weight, whose tensors mean, bias and dbias stay
/// empty: Zhang, Sennrich, "Root mean square layer normalization" (2019).
enum class NormKind { layer, rms };

/// Writes out = (x - mean) * rstd * weight + bias over the last axis, and the statistics for the
/// backward pass. x, out [T, h]; weight, bias [h]; mean, rstd [T] of the accumulation type. On CUDA
/// h is at most kMaxRowColumns. Statistics are accumulated in double on the host. Raises out's amax
/// (see Amax).
struct LayerNormForward {
  Tensor x;
  Tensor weight;
  Tensor bias;
  Tensor out;
  Tensor mean;
  Tensor rstd;
  double eps = 1e-5;
  NormKind kind = NormKind::layer;
};

/// Adds the input gradient to dx (which already holds the gradient of the residual branch), and
/// adds to dweight and dbias. dout, x, dx [T, h]; mean, rstd [T], dweight, dbias [h] of the
/// accumulation type; weight [h]. When given, dx_sum [h] of the accumulation type gets the column
/// sums of the new dx added, before they are rounded: the gradient of a bias that was added to x.
/// The order of all sums is fixed. When given, out [T, h] gets the result of the forward pass
/// again, bit by bit, for which bias [h] is needed, too: x is at hand, so that costs a write.
/// Raises dx's amax.
struct LayerNormBackward {
  Tensor dout;
  Tensor x;
  Tensor weight;
  Tensor mean;
  Tensor rstd;
  Tensor dx;
  Tensor dweight;
  Tensor dbias;
  Tensor dx_sum;
  Tensor out;
  Tensor bias;
  NormKind kind = NormKind::layer;
};

namespace host {
void layernorm_forward(const LayerNormForward& args);
void layernorm_backward(const LayerNormBackward& args);
}  // namespace host

namespace cuda {
void layernorm_forward(const LayerNormForward& args, const Context& context);
void layernorm_backward(const LayerNormBackward& args, const Context& context);
}  // namespace cuda

// ---- dropout, keyed by the logical element

/// Dropout of one site of one micro-batch. Sample j of the micro-batch is sample `*first_sample +
/// j` of the run; element numbers are those of DropoutStream. Kept elements are scaled by 1 / (1 -
/// probability); probability 0 keeps everything unchanged.
struct Dropout {
  double probability = 0.0;
  std::uint64_t seed = 0;
  /// [1] in the backend's memory, where a CUDA graph finds that of each micro-batch; null: 0.
  const std::uint64_t* first_sample = nullptr;
  std::uint32_t layer = 0;
  DropoutSite site = DropoutSite::embedding;
};

/// Writes dx = mask * dout / (1 - p), the same mask as the forward pass drew. dx may be dout.
/// dout, dx [s, b, h]: positions first_position .. first_position + s - 1 of each sample. Raises
/// dx's amax.
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
/// rstd [s b] of the accumulation type; NormKind::rms has no norm_bias and no mean. With `terms`,
/// which are like sum.x, their sum stands for sum.x, which is not read; see adds_terms(). Raises
/// norm's amax.
struct BiasDropoutResidualNorm {
  BiasDropoutResidual sum;
  PeerTerms terms = {};
  Tensor weight;
  Tensor norm_bias;
  Tensor norm;
  Tensor mean;
  Tensor rstd;
  double eps = 1e-5;
  NormKind kind = NormKind::layer;
};

/// Whether bias_dropout_residual_norm() takes terms of rows of `columns` elements of `dtype`: those
/// of 16 bits that are read 16 bytes at a time.
inline bool adds_terms(DType dtype, std::int64_t columns) {
  return size_of(dtype) == 2 && columns % 8 == 0;
}

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
