// Matrix product.
#pragma once

#include "device/tensor.hpp"

namespace trireme::kernels {

/// C = op(A) op(B) + beta C, with op(X) = X or its transpose. Writes C when beta is 0 (C is not
/// read), adds when 1. op(A) [m, k], op(B) [k, n], C [m, n], all of one type; accumulates in that
/// type. Tensors of more than two axes fold their leading axes into rows.
struct Gemm {
  Tensor a;
  Tensor b;
  Tensor c;
  bool transpose_a = false;
  bool transpose_b = false;
  double beta = 0.0;
};

namespace host {
void gemm(const Gemm& args);
}
}  // namespace trireme::kernels
