// Bound by bytes: reads 16 bytes a parameter and writes 12. Plain: one element at a time.
#include "kernels/lamb.hpp"

#include <cmath>

#include "kernels/cuda/common/flat.cuh"

namespace trireme::kernels::cuda {
namespace {

struct Direction {
  const float* weight;
  float* gradient;
  float* m;
  float* v;
  float beta1, rest1, beta2, rest2, gradient_scale, eps, correction1, correction2, decay;

  __device__ void operator()(std::int64_t i, bool decays) const {
    const float g = gradient[i] * gradient_scale;
    const float mean = beta1 * m[i] + rest1 * g;
    const float square = beta2 * v[i] + rest2 * (g * g);
    m[i] = mean;
    v[i] = square;
    gradient[i] = correction1 * (mean / (sqrtf(square) * correction2 + eps)) +
                  (decays ? decay : 0.0f) * weight[i];
  }
};

}  // namespace

void lamb_direction(const LambDirection& args, const Context& context) {
  const char* op = "lamb_direction";
  const std::int64_t size = args.weight.size();
  check_vector(op, "weight", args.weight, DType::f32, size);
  check_vector(op, "gradient", args.gradient, DType::f32, size);
  check_vector(op, "m", args.m, DType::f32, size);
  check_vector(op, "v", args.v, DType::f32, size);
  TRIREME_CHECK(args.step >= 1, "{}: step {}, but updates count from 1", op, args.step);
  const double step = static_cast<double>(args.step);
  launch_flat(Direction{args.weight.as<float>(), args.gradient.as<float>(), args.m.as<float>(),
                        args.v.as<float>(), static_cast<float>(args.beta1),
                        static_cast<float>(1.0 - args.beta1), static_cast<float>(args.beta2),
                        static_cast<float>(1.0 - args.beta2),
                        static_cast<float>(args.gradient_scale), static_cast<float>(args.eps),
                        static_cast<float>(1.0 / (1.0 - std::pow(args.beta1, step))),
                        static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(args.beta2, step))),
                        static_cast<float>(args.weight_decay)},
              size, args.decayed, context);
}

}  // namespace trireme::kernels::cuda
