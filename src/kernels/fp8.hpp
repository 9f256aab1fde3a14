// FP8 operands of GEMMs: largest magnitudes, and conversions with one scale for a whole tensor
// ("current scaling").
// Source: Micikevicius et al., "FP8 formats for deep learning" (2022), section 3.
#pragma once

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

/// Writes the largest magnitude of x's elements to amax [1] fp32; NaN where one of them is NaN. x
/// of fp32 or a 16-bit type.
struct Amax {
  Tensor x;
  Tensor amax;
  bool gelu = false;  ///< of gelu_tanh(x), computed in fp32, in place of x
};

/// The factor by which elements are multiplied before they are rounded to FP8: max / amax, so that
/// the largest becomes the largest number of the type; 1 for a tensor of zeros. At most 2^126, so
/// that its inverse is a normal number. The factor of a NaN is NaN, that of infinity 0.
TRIREME_HOST_DEVICE inline float fp8_factor(float amax, float max) {
  const float factor = amax == 0.0f ? 1.0f : max / amax;
  return factor > 0x1p126f ? 0x1p126f : factor;
}

/// Writes x [T, n], of fp32 or a 16-bit type, times fp8_factor(amax), rounded to the FP8 type of
/// `out` [T, n] and `transposed` [n, T], of which one may be missing: to nearest, ties to even,
/// saturating. Writes the inverse of the factor to scale [1] fp32, which is the tensors' scale:
/// Tensor::scale points there. amax [1] fp32 is read only.
struct Quantize {
  Tensor x;
  Tensor amax;
  Tensor scale;
  Tensor out;
  Tensor transposed;
  bool gelu = false;  ///< as Amax
};

/// Throws InternalError unless the tensors are as Quantize says; returns their FP8 type.
DType check_quantize(const Quantize& args);

namespace host {
void amax(const Amax& args);
void quantize(const Quantize& args);
}  // namespace host

namespace cuda {
void amax(const Amax& args, const Context& context);
void quantize(const Quantize& args, const Context& context);
}  // namespace cuda

}  // namespace trireme::kernels
