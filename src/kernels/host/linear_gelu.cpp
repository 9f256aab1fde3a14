#include "kernels/linear_gelu.hpp"

#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"

namespace trireme::kernels::host {

void linear_gelu(const LinearGelu& args) {
  gemm({.a = args.x, .b = args.weight, .c = args.up, .transpose_b = true, .bias = args.bias});
  gelu_forward({.x = args.up, .out = args.activated});
}

void linear_gelu_gradient(const LinearGeluGradient& args) {
  TRIREME_CHECK(args.dup.data != args.up.data || args.up.size() == 0,
                "linear_gelu_gradient: dup may not be up, which is read after it is written");
  gemm({.a = args.dy, .b = args.weight, .c = args.dup});
  gelu_backward({.dout = args.dup, .x = args.up, .dx = args.dup, .dbias = args.dbias});
}

}  // namespace trireme::kernels::host
