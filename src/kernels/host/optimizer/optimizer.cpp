#include "kernels/optimizer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/tensor.hpp"
#include "kernels/host/compute.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {

/// Elements of a flat buffer that one task updates.
inline constexpr std::int64_t kFlatBlock = 16384;

/// Calls function(begin, end, inside) for the consecutive ranges of n elements.
template <typename Function>
void for_ranges(const IndexRanges& ranges, std::int64_t n, const Function& function) {
  std::int64_t begin = 0;
  bool inside = ranges.count == 0;
  for (std::int64_t i = 0; i <= ranges.count; ++i) {
    const std::int64_t end = i < ranges.count ? std::min(ranges.bounds[i], n) : n;
    if (begin < end) function(begin, end, inside);
    begin = std::max(begin, end);
    inside = !inside;
  }
}

/// Adds sum(x, size) of each range of args.x [n] that is among args.counted to args.out [1] f64.
/// `args` is a SquaredSum or a ZeroCount. Throws InternalError for tensors of other types.
template <typename Args, typename Sum>
void add_counted(const char* op, const Args& args, const Sum& sum) {
  check_vector(op, "x", args.x, args.x.dtype, args.x.size());
  check_vector(op, "out", args.out, DType::f64, 1);
  dispatch(args.x.dtype, [&](auto zero) {
    const auto* x = args.x.template as<decltype(zero)>();
    for_ranges(args.counted, args.x.size(), [&](std::int64_t begin, std::int64_t end, bool counts) {
      if (counts) *args.out.template as<double>() += sum(x + begin, end - begin);
    });
  });
}

/// How an update moves the two moments of an element, in the type T. `args` is an AdamW or a
/// LambDirection.
template <typename T>
struct AdamMoments {
  T beta1, rest1, beta2, rest2, eps;
  T correction;  ///< 1 / sqrt(1 - beta2^step)

  template <typename Args>
  explicit AdamMoments(const Args& args)
      : beta1(static_cast<T>(args.beta1)),
        rest1(static_cast<T>(1.0 - args.beta1)),
        beta2(static_cast<T>(args.beta2)),
        rest2(static_cast<T>(1.0 - args.beta2)),
        eps(static_cast<T>(args.eps)),
        correction(static_cast<T>(
            1.0 / std::sqrt(1.0 - std::pow(args.beta2, static_cast<double>(args.step))))) {}

  /// Takes the gradient g into m and v. Returns m / (sqrt(v / (1 - beta2^step)) + eps), which lacks
  /// the correction of m.
  T move(T g, T& m, T& v) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    return m / (std::sqrt(v) * correction + eps);
  }
};

/// Throws InternalError unless the tensors of `args`, as above, are of one size and type, and
/// updates count from 1.
template <typename Args>
void check_adam(const char* op, const Args& args) {
  for (const auto& [name, tensor] : {std::pair{"weight", args.weight},
                                     {"gradient", args.gradient},
                                     {"m", args.m},
                                     {"v", args.v}})
    check_vector(op, name, tensor, args.weight.dtype, args.weight.size());
  TRIREME_CHECK(args.step >= 1, "{}: step {}, but updates count from 1", op, args.step);
}

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
  for_ranges(args.decayed, args.weight.size(),
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
  for_ranges(args.decayed, args.weight.size(),
             [&](std::int64_t begin, std::int64_t end, bool decays) {
               dispatch(args.weight.dtype,
                        [&](auto zero) { direct<decltype(zero)>(args, begin, end, decays); });
             });
}

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
  for_ranges(args.decayed, size, [&](std::int64_t begin, std::int64_t end, bool decays) {
    dispatch(dtype, [&](auto zero) { descend<decltype(zero)>(args, begin, end, decays); });
  });
  if (args.copy) cast({.x = args.weight, .out = args.copy});
}

namespace {

template <typename T>
std::int64_t count_zeros(const T* x, std::int64_t size) {
  std::int64_t count = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : count)
  for (std::int64_t i = 0; i < size; ++i) count += x[i] == T{0};
  return count;
}

}  // namespace

void zero_count(const ZeroCount& args) {
  add_counted("zero_count", args, [](const auto* x, std::int64_t size) {
    return static_cast<double>(count_zeros(x, size));
  });
}

namespace {

template <typename Bits>
std::uint64_t weighted_sum(const void* x, std::int64_t begin, std::int64_t end) {
  const auto* bits = static_cast<const Bits*>(x);
  std::uint64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i)
    sum += bits[i] * checksum_weight(static_cast<std::uint64_t>(i));
  return sum;
}

}  // namespace

void checksum(const Checksum& args) {
  const std::int64_t size = args.x.size();
  const void* x = args.x.data;
  const std::size_t width = size_of(args.x.dtype);
  std::atomic<std::uint64_t> total = 0;
  parallel_blocks(size, kFlatBlock, [&](std::int64_t begin, std::int64_t end) {
    total += width == 8   ? weighted_sum<std::uint64_t>(x, begin, end)
             : width == 4 ? weighted_sum<std::uint32_t>(x, begin, end)
             : width == 2 ? weighted_sum<std::uint16_t>(x, begin, end)
                          : weighted_sum<std::uint8_t>(x, begin, end);
  });
  *args.out += total;
}

void random_normal(const RandomNormal& args) {
  const Extents extents = extents_of("random_normal", "out", args.out);
  check_matrix("random_normal", "out", args.out, args.out.dtype, extents);
  compute(args, args.out.dtype, {}, {&RandomNormal::out}, [&](const RandomNormal& it, auto zero) {
    using T = decltype(zero);
    T* out = it.out.as<T>();
    parallel_for(it.out.size(), [&](std::int64_t i) {
      out[i] = static_cast<T>(random_normal_value(it, extents.columns, i));
    });
  });
}

}  // namespace trireme::kernels::host
