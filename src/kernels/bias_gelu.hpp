// Biases and the GELU of the MLP.
#pragma once

#include "device/tensor.hpp"

namespace trireme::kernels {

/// Writes x += bias in place. x [T, n], bias [n].
struct AddBias {
  Tensor x;
  Tensor bias;
};

/// Adds the column sums of dout to dbias. dout [T, n], dbias [n]. Sums in double on the host.
struct BiasGradient {
  Tensor dout;
  Tensor dbias;
};

/// Writes x += bias in place (kept for the backward pass) and out = gelu(x), the tanh form:
/// gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). x, out [T, n]; bias [n].
/// Source: Hendrycks, Gimpel, "Gaussian error linear units" (2016), section 2.
struct BiasGeluForward {
  Tensor x;
  Tensor bias;
  Tensor out;
};

/// Writes dx = dout * gelu'(x), with x including the bias. dx may be dout. All [T, n].
struct GeluBackward {
  Tensor dout;
  Tensor x;
  Tensor dx;
};

namespace host {
void add_bias(const AddBias& args);
void bias_gradient(const BiasGradient& args);
void bias_gelu_forward(const BiasGeluForward& args);
void gelu_backward(const GeluBackward& args);
}  // namespace host
}  // namespace trireme::kernels
