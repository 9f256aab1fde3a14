// Activation functions.
#pragma once

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

/// gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); gelu(x) = x/2 (1 + erf(x /
/// sqrt(2))); tanh(x); silu(x) = x / (1 + exp(-x)). Source: Hendrycks, Gimpel, "Gaussian error
/// linear units" (2016), section 2.
enum class Activation { gelu_tanh, gelu, tanh, silu };

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

/// Writes out = f(gate) * up: SwiGLU with f = silu, GeGLU with gelu_tanh or gelu. x [T, 2 n]: the n
/// columns of gate, then those of up; it is kept for the backward pass. out [T, n]. Source:
/// Shazeer, "GLU variants improve transformer" (2020).
struct GatedForward {
  Tensor x;
  Tensor out;
  Activation function = Activation::silu;
};

/// Writes dx = (dout * up * f'(gate), dout * f(gate)). dx may be x. x, dx [T, 2 n], dout [T, n].
struct GatedBackward {
  Tensor dout;
  Tensor x;
  Tensor dx;
  Activation function = Activation::silu;
};

namespace host {
void gelu_forward(const GeluForward& args);
void gelu_backward(const GeluBackward& args);
void gated_forward(const GatedForward& args);
void gated_backward(const GatedBackward& args);
}  // namespace host

namespace cuda {
void gelu_forward(const GeluForward& args, const Context& context);
void gelu_backward(const GeluBackward& args, const Context& context);
void gated_forward(const GatedForward& args, const Context& context);
void gated_backward(const GatedBackward& args, const Context& context);
}  // namespace cuda
}  // namespace trireme::kernels
