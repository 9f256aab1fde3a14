#include "kernels/lamb.hpp"

#include <cmath>

#include "kernels/host/stretches.hpp"
#include "kernels/host/threads.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

template <typename T>
void direct(const LambDirection& args, std::int64_t first, std::int64_t last, bool decays) {
  const T* weight = args.weight.as<T>();
  T* gradient = args.gradient.as<T>();
  T* m = args.m.as<T>();
  T* v = args.v.as<T>();
  const double step = static_cast<double>(args.step);
  const T beta1 = static_cast<T>(args.beta1), rest1 = static_cast<T>(1.0 - args.beta1);
  const T beta2 = static_cast<T>(args.beta2), rest2 = static_cast<T>(1.0 - args.beta2);
  const T scale = static_cast<T>(args.gradient_scale), eps = static_cast<T>(args.eps);
  const T correction1 = static_cast<T>(1.0 / (1.0 - std::pow(args.beta1, step)));
  const T correction2 = static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(args.beta2, step)));
  const T decay = static_cast<T>(decays ? args.weight_decay : 0.0);
  parallel_blocks(last - first, kFlatBlock, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = first + begin; i < first + end; ++i) {
      const T g = gradient[i] * scale;
      const T mean = beta1 * m[i] + rest1 * g;
      const T square = beta2 * v[i] + rest2 * (g * g);
      m[i] = mean;
      v[i] = square;
      gradient[i] =
          correction1 * (mean / (std::sqrt(square) * correction2 + eps)) + decay * weight[i];
    }
  });
}

}  // namespace

void lamb_direction(const LambDirection& args) {
  const char* op = "lamb_direction";
  const DType dtype = args.weight.dtype;
  const std::int64_t size = args.weight.size();
  check_vector(op, "weight", args.weight, dtype, size);
  check_vector(op, "gradient", args.gradient, dtype, size);
  check_vector(op, "m", args.m, dtype, size);
  check_vector(op, "v", args.v, dtype, size);
  TRIREME_CHECK(args.step >= 1, "{}: step {}, but updates count from 1", op, args.step);
  for_stretches(args.decayed, size, [&](std::int64_t begin, std::int64_t end, bool decays) {
    dispatch(dtype, [&](auto zero) { direct<decltype(zero)>(args, begin, end, decays); });
  });
}

}  // namespace trireme::kernels::host
