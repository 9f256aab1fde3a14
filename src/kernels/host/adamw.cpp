#include "kernels/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/dtype.hpp"
#include "kernels/host/adam_moments.hpp"
#include "kernels/host/math.hpp"
#include "kernels/host/scratch.hpp"
#include "kernels/host/stretches.hpp"
#include "kernels/host/threads.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

template <typename T>
void update(const AdamW& args, std::int64_t first, std::int64_t last, bool decays) {
  T* weight = args.weight.as<T>();
  const T* gradient = args.gradient.as<T>();
  T* m = args.m.as<T>();
  T* v = args.v.as<T>();
  const AdamMoments<T> moments(args);
  const T scale = static_cast<T>(args.gradient_scale);
  const T rate = static_cast<T>(args.learning_rate /
                                (1.0 - std::pow(args.beta1, static_cast<double>(args.step))));
  const bool decoupled = !args.decay_in_gradient;
  const T decay = static_cast<T>(decays && decoupled ? args.learning_rate * args.weight_decay : 0);
  const T pull = static_cast<T>(decays && !decoupled ? args.weight_decay : 0);
  parallel_blocks(last - first, kFlatBlock, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = first + begin; i < first + end; ++i) {
      const T g = gradient[i] * scale + pull * weight[i];
      weight[i] -= rate * moments.move(g, m[i], v[i]) + decay * weight[i];
    }
  });
}

struct BlockSums;

template <typename T>
double sum_of_squares(const T* x, std::int64_t size) {
  const std::int64_t blocks = (size + kFlatBlock - 1) / kFlatBlock;
  double* sums = scratch<double, BlockSums>(blocks);
  parallel_for(blocks, [&](std::int64_t block) {
    const T* begin = x + block * kFlatBlock;
    sums[block] = sum_of(std::min(kFlatBlock, size - block * kFlatBlock), [&](std::int64_t i) {
      return static_cast<double>(begin[i]) * static_cast<double>(begin[i]);
    });
  });
  double total = 0.0;
  for (std::int64_t block = 0; block < blocks; ++block) total += sums[block];
  return total;
}

}  // namespace

void adamw(const AdamW& args) {
  check_adam("adamw", args);
  for_stretches(args.decayed, args.weight.size(),
                [&](std::int64_t begin, std::int64_t end, bool decays) {
                  dispatch(args.weight.dtype,
                           [&](auto zero) { update<decltype(zero)>(args, begin, end, decays); });
                });
  if (args.copy) cast({.x = args.weight, .out = args.copy});
}

void squared_sum(const SquaredSum& args) {
  add_counted("squared_sum", args,
              [](const auto* x, std::int64_t size) { return sum_of_squares(x, size); });
}

void cast(const Cast& args) {
  check_vector("cast", "x", args.x, args.x.dtype, args.x.size());
  check_vector("cast", "out", args.out, args.out.dtype, args.x.size());
  const bool widens = args.out.dtype == accumulation_type(args.x.dtype);
  TRIREME_CHECK(widens || args.x.dtype == accumulation_type(args.out.dtype), "cast: {} to {}",
                name_of(args.x.dtype), name_of(args.out.dtype));
  if (args.out.dtype == args.x.dtype)
    std::memcpy(args.out.data, args.x.data, args.x.bytes());
  else if (widens)
    convert_to_float(args.x.data, args.x.size(), args.x.dtype, args.out.as<float>());
  else
    convert_from_float(args.x.as<float>(), args.x.size(), args.out.dtype, args.out.data);
}

}  // namespace trireme::kernels::host
