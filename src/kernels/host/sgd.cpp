#include "kernels/sgd.hpp"

#include "kernels/host/stretches.hpp"
#include "kernels/host/threads.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

template <typename T>
void descend(const Sgd& args, std::int64_t first, std::int64_t last, bool decays) {
  T* weight = args.weight.as<T>();
  const T* gradient = args.gradient.as<T>();
  T* m = args.m ? args.m.as<T>() : nullptr;
  const T rate = static_cast<T>(args.learning_rate), momentum = static_cast<T>(args.momentum);
  const T scale = static_cast<T>(args.gradient_scale);
  const T decay = static_cast<T>(decays ? args.weight_decay : 0.0);
  parallel_blocks(last - first, kFlatBlock, [&](std::int64_t begin, std::int64_t end) {
    if (m != nullptr) {
#pragma omp simd
      for (std::int64_t i = first + begin; i < first + end; ++i) {
        m[i] = momentum * m[i] + (gradient[i] * scale + decay * weight[i]);
        weight[i] -= rate * m[i];
      }
    } else {
#pragma omp simd
      for (std::int64_t i = first + begin; i < first + end; ++i)
        weight[i] -= rate * (gradient[i] * scale + decay * weight[i]);
    }
  });
}

}  // namespace

void sgd(const Sgd& args) {
  const DType dtype = args.weight.dtype;
  const std::int64_t size = args.weight.size();
  check_vector("sgd", "weight", args.weight, dtype, size);
  check_vector("sgd", "gradient", args.gradient, dtype, size);
  if (args.m) check_vector("sgd", "m", args.m, dtype, size);
  for_stretches(args.decayed, size, [&](std::int64_t begin, std::int64_t end, bool decays) {
    dispatch(dtype, [&](auto zero) { descend<decltype(zero)>(args, begin, end, decays); });
  });
  if (args.copy) cast({.x = args.weight, .out = args.copy});
}

}  // namespace trireme::kernels::host
