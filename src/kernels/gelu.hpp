// Activation functions.
#pragma once

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

/// gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); gelu(x) = x/2 (1 + erf(x /
/// sqrt(2))); tanh(x). Source: Hendrycks, Gimpel, "Gaussian error linear units" (2016), section 2.
enum class Activation { gelu_tanh, gelu, tanh };

/// Writes out = f(x). x, out [T, n]; x is kept for the backward pass.
struct GeluForward {
  Tensor x;
  Tensor out;
  Activation function = Activation::gelu_tanh;
};

/// Writes dx = dout * f'(x) and adds its column sums to dbias, the gradient of the bias that
/// became part of x. dx may be dout or x. dout, x, dx [T, n]; dbias [n] of the accumulation type.
struct GeluBackward {
  Tensor dout;
  Tensor x;
  Tensor dx;
  Tensor dbias;
  Activation function = Activation::gelu_tanh;
};

namespace host {
void gelu_forward(const GeluForward& args);
void gelu_backward(const GeluBackward& args);
}  // namespace host

namespace cuda {
void gelu_forward(const GeluForward& args, const Context& context);
void gelu_backward(const GeluBackward& args, const Context& context);
}  // namespace cuda
}  // namespace trireme::kernels
