// The direction of a LAMB update over flat buffers.
#pragma once

#include "kernels/adamw.hpp"

namespace trireme::kernels {

/// Updates the moments of n elements as AdamW does, and writes over the gradient
///   u = m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay w.
/// The caller steps each parameter by lr |w| / |u| along u, with Sgd. weight, gradient, m, v [n] of
/// one accumulation type; `decayed` and `step` as in AdamW. Source: You et al., "Large batch
/// optimization for deep learning: training BERT in 76 minutes" (2020), algorithm 2.
struct LambDirection {
  Tensor weight;
  Tensor gradient;
  Tensor m;
  Tensor v;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
  std::int64_t step = 1;
  Stretches decayed;
};

namespace host {
void lamb_direction(const LambDirection& args);
}
namespace cuda {
void lamb_direction(const LambDirection& args, const Context& context);
}
}  // namespace trireme::kernels
