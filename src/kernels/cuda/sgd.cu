// Bound by bytes: reads 12 bytes a parameter and writes 8, 8 and 4 without momentum, and 2 more
// with a half-precision copy. Plain: one element at a time.
#include "kernels/sgd.hpp"

#include "kernels/cuda/common/flat.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename Copy>
struct Descent {
  float* weight;
  const float* gradient;
  float* m;    // null: no momentum
  Copy* copy;  // null: none
  float rate, momentum, gradient_scale, decay;

  __device__ void operator()(std::int64_t i, bool decays) const {
    const float before = weight[i];
    float step = gradient[i] * gradient_scale + (decays ? decay : 0.0f) * before;
    if (m != nullptr) {
      step += momentum * m[i];
      m[i] = step;
    }
    const float after = before - rate * step;
    weight[i] = after;
    if (copy != nullptr) copy[i] = from_float<Copy>(after);
  }
};

}  // namespace

void sgd(const Sgd& args, const Context& context) {
  const std::int64_t size = args.weight.size();
  check_vector("sgd", "weight", args.weight, DType::f32, size);
  check_vector("sgd", "gradient", args.gradient, DType::f32, size);
  if (args.m) check_vector("sgd", "m", args.m, DType::f32, size);
  if (args.copy) check_vector("sgd", "copy", args.copy, args.copy.dtype, size);
  dispatch_cuda(args.copy ? args.copy.dtype : DType::f32, [&](auto zero) {
    using Copy = decltype(zero);
    launch_flat(
        Descent<Copy>{
            args.weight.as<float>(), args.gradient.as<float>(),
            args.m ? args.m.as<float>() : nullptr, args.copy ? args.copy.as<Copy>() : nullptr,
            static_cast<float>(args.learning_rate), static_cast<float>(args.momentum),
            static_cast<float>(args.gradient_scale), static_cast<float>(args.weight_decay)},
        size, args.decayed, context);
  });
}

}  // namespace trireme::kernels::cuda
