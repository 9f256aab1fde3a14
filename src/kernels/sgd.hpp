// Gradient descent over flat buffers.
#pragma once

#include "kernels/adamw.hpp"

namespace trireme::kernels {

/// One step of gradient descent on n elements, in place, with momentum where `m` is given:
///   g = gradient_scale * gradient + weight_decay w;  m = momentum m + g;  w -= lr m
/// and without it w -= lr g. weight, gradient, m [n] of one accumulation type; `decayed` and `copy`
/// as in AdamW. Source: PyTorch, torch.optim.SGD, without dampening.
struct Sgd {
  Tensor weight;
  Tensor gradient;
  Tensor m;
  Tensor copy;
  double learning_rate = 0.0;
  double momentum = 0.0;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
  Stretches decayed;
};

namespace host {
void sgd(const Sgd& args);
}
namespace cuda {
void sgd(const Sgd& args, const Context& context);
}
}  // namespace trireme::kernels
