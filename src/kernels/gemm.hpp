// Matrix product.
#pragma once

#include "core/tensor.hpp"

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
}  // namespace trireme::kernels
