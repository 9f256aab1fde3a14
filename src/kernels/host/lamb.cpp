#include "kernels/lamb.hpp"

#include <cmath>

#include "kernels/host/adam_moments.hpp"
#include "kernels/host/stretches.hpp"
#include "kernels/host/threads.hpp"

namespace trireme::kernels::host {
namespace {

template <typename T>
void direct(const LambDirection& args, std::int64_t first, std::int64_t last, bool decays) {
  const T* weight = args.weight.as<T>();
  T* gradient = args.gradient.as<T>();
  T* m = args.m.as<T>();
  T* v = args.v.as<T>();
  const AdamMoments<T> moments(args);
  const T scale = static_cast<T>(args.gradient_scale);
  const T correction =
      static_cast<T>(1.0 / (1.0 - std::pow(args.beta1, static_cast<double>(args.step))));
  const T decay = static_cast<T>(decays ? args.weight_decay : 0.0);
  parallel_blocks(last - first, kFlatBlock, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = first + begin; i < first + end; ++i)
      gradient[i] = correction * moments.move(gradient[i] * scale, m[i], v[i]) + decay * weight[i];
  });
}

}  // namespace

void lamb_direction(const LambDirection& args) {
  check_adam("lamb_direction", args);
  for_stretches(args.decayed, args.weight.size(),
                [&](std::int64_t begin, std::int64_t end, bool decays) {
                  dispatch(args.weight.dtype,
                           [&](auto zero) { direct<decltype(zero)>(args, begin, end, decays); });
                });
}

}  // namespace trireme::kernels::host
