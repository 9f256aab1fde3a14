// Dropout keyed by the logical element.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "device/tensor.hpp"

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
/// dout, dx [s, b, h].
struct DropoutBackward {
  Tensor dout;
  Tensor dx;
  Dropout dropout;
};

/// Writes out = residual + dropout(x + bias): the end of a transformer sublayer. out may be
/// residual. x, residual, out [s, b, h]; bias [h].
struct BiasDropoutResidual {
  Tensor x;
  Tensor bias;
  Tensor residual;
  Tensor out;
  Dropout dropout;
};

namespace host {
void dropout_backward(const DropoutBackward& args);
void bias_dropout_residual(const BiasDropoutResidual& args);
}  // namespace host
}  // namespace trireme::kernels
