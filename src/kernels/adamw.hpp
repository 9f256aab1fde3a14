// Optimizer arithmetic over flat buffers.
#pragma once

#include <cstdint>

#include "device/tensor.hpp"

namespace trireme::kernels {

/// One AdamW update of n elements, in place. The gradient is first multiplied by `gradient_scale`
/// (clipping).
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   w -= lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay w)
/// weight, gradient, m, v [n] of one type; `step` counts updates from 1.
/// Source: Loshchilov, Hutter, "Decoupled weight decay regularization" (2019), algorithm 2.
struct AdamW {
  Tensor weight;
  Tensor gradient;
  Tensor m;
  Tensor v;
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
  std::int64_t step = 1;
};

/// Adds the sum of squares of x [n] to out [1] f64. Sums in double, the same for any number of
/// threads.
struct SquaredSum {
  Tensor x;
  Tensor out;
};

/// Writes x *= factor. x of any shape.
struct Scale {
  Tensor x;
  double factor = 1.0;
};

namespace host {
void adamw(const AdamW& args);
void squared_sum(const SquaredSum& args);
void scale(const Scale& args);
}  // namespace host
}  // namespace trireme::kernels
