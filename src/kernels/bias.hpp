// Gradients of biases.
#pragma once

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

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
