// Linear layers and the GELU beside them.
#pragma once

#include "core/tensor.hpp"

namespace trireme::kernels {

/// The first half of an MLP: writes up = x weight^T + bias, which is kept for the backward pass,
/// and activated = gelu(up), as Gemm and GeluForward do; a backend may take the gelu of up before
/// it rounds it. x [T, k], weight [n, k], bias [n], up and activated [T, n], all of one type.
struct LinearGelu {
  Tensor x;
  Tensor weight;
  Tensor bias;
  Tensor up;
  Tensor activated;
};

/// The gradient of what the second half's product does to the first: with y = gelu(up) weight^T,
/// writes dup = (dy weight) * gelu'(up) and adds its column sums to dbias, the gradient of the bias
/// that became part of up, as Gemm and GeluBackward do. dup may not be up. dy [T, k], weight [k,
/// n], up and dup [T, n], all of one type; dbias [n] of the accumulation type.
struct LinearGeluGradient {
  Tensor dy;
  Tensor weight;
  Tensor up;
  Tensor dup;
  Tensor dbias;
};

namespace host {
void linear_gelu(const LinearGelu& args);
void linear_gelu_gradient(const LinearGeluGradient& args);
}  // namespace host
}  // namespace trireme::kernels
