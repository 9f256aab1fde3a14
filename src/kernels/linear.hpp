// Linear layers: GEMMs, alone or with the GELU or the gradient of a bias fused to them.
#pragma once

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

/// C = op(A) op(B) + beta C + bias, with op(X) = X or its transpose. Writes C when beta is 0 (C is
/// not read), adds when 1. op(A) [m, k], op(B) [k, n], C [m, n]; `bias` [n], when given, is added
/// to every row, with beta 0. A and B of one type, C and bias of that type or, for weight
/// gradients, C of its accumulation type; accumulates in the accumulation type. Tensors of more
/// than two axes fold their leading axes into rows.
struct Gemm {
  Tensor a;
  Tensor b;
  Tensor c;
  bool transpose_a = false;
  bool transpose_b = false;
  double beta = 0.0;
  Tensor bias;
};

namespace host {
void gemm(const Gemm& args);
}

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

/// Adds the column sums of dout to dbias. dout [T, n]; dbias [n] of the accumulation type. Sums in
/// double on the host; the order of the sum is fixed.
struct BiasGradient {
  Tensor dout;
  Tensor dbias;
};

namespace host {
void bias_gradient(const BiasGradient& args);
}
namespace cuda {
void bias_gradient(const BiasGradient& args, const Context& context);
}

}  // namespace trireme::kernels
