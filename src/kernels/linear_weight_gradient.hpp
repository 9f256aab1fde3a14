// What the backward pass of a linear layer leaves for its parameters.
#pragma once

#include "core/tensor.hpp"

namespace trireme::kernels {

/// The gradients of weight and bias of y = x weight^T + bias: adds dy^T x to dweight and the column
/// sums of dy to dbias, as Gemm and BiasGradient do. x [T, in], dy [T, out], of one type; dbias
/// [out] of the accumulation type, dweight [out, in] of that or of the same type, as Gemm.
struct LinearWeightGradient {
  Tensor x;
  Tensor dy;
  Tensor dweight;
  Tensor dbias;
};

namespace host {
void linear_weight_gradient(const LinearWeightGradient& args);
}
}  // namespace trireme::kernels
