#include "kernels/linear_weight_gradient.hpp"

#include "kernels/bias.hpp"
#include "kernels/gemm.hpp"

namespace trireme::kernels::host {

void linear_weight_gradient(const LinearWeightGradient& args) {
  gemm({.a = args.dy, .b = args.x, .c = args.dweight, .transpose_a = true, .beta = 1.0});
  bias_gradient({.dout = args.dy, .dbias = args.dbias});
}

}  // namespace trireme::kernels::host
