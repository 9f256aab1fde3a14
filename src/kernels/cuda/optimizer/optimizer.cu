// Optimizer arithmetic over flat buffers; bound by bytes.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/optimizer.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Elements that a block of sum_squares searches the ranges for together.
constexpr std::int64_t kChunk = 8192;

/// The numbers of one update, as the host computes them.
struct Update {
  float beta1, rest1, beta2, rest2;
  float gradient_scale, eps;
  float rate;        // learning rate over the first moment's bias
  float correction;  // one over the root of the second moment's bias
  float decay;
  float pull;  // the part of the weight that is added to the gradient

  explicit Update(const AdamW& args)
      : beta1(static_cast<float>(args.beta1)),
        rest1(static_cast<float>(1.0 - args.beta1)),
        beta2(static_cast<float>(args.beta2)),
        rest2(static_cast<float>(1.0 - args.beta2)),
        gradient_scale(static_cast<float>(args.gradient_scale)),
        eps(static_cast<float>(args.eps)),
        rate(static_cast<float>(args.learning_rate /
                                (1.0 - std::pow(args.beta1, static_cast<double>(args.step))))),
        correction(static_cast<float>(
            1.0 / std::sqrt(1.0 - std::pow(args.beta2, static_cast<double>(args.step))))),
        decay(static_cast<float>(args.decay_in_gradient ? 0.0
                                                        : args.learning_rate * args.weight_decay)),
        pull(static_cast<float>(args.decay_in_gradient ? args.weight_decay : 0.0)) {}

  __device__ void apply(float& weight, float gradient, float& m, float& v, bool decays) const {
    const float g = gradient * gradient_scale + (decays ? pull : 0.0f) * weight;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    weight -= rate * (m / (sqrtf(v) * correction + eps)) + (decays ? decay : 0.0f) * weight;
  }
};

template <typename Copy>
struct State {
  float* weight;
  const float* gradient;
  float* m;
  float* v;
  Copy* copy;  // null: none
  std::int64_t size;
};

/// One group of kWidth parameters a thread: more of them a thread were slower. The search for the
/// decayed parameters of a block overlaps with the loads.
template <typename Copy, int kWidth>
__global__ void __launch_bounds__(kThreads)
    update_parameters(Update update, State<Copy> state, IndexRanges decayed) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * (kThreads * kWidth);
  const std::int64_t end = min(state.size, begin + kThreads * kWidth);
  const std::int64_t i = begin + threadIdx.x * kWidth;
  Elements<float, kWidth> weight = {}, gradient = {}, m = {}, v = {};
  const bool whole = i + kWidth <= end;
  if (whole) {
    weight = load<kWidth>(state.weight + i);
    gradient = load<kWidth>(state.gradient + i);
    m = load<kWidth>(state.m + i);
    v = load<kWidth>(state.v + i);
  }
  const ChunkRanges ranges(decayed, begin, end);
  if (whole) {
    const Values<kWidth> g = widen(gradient);
    Values<kWidth> w = widen(weight), mean = widen(m), square = widen(v);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      update.apply(w[k], g[k], mean[k], square[k], ranges.contains(i + k));
    store(state.weight + i, narrow<float>(w));
    store(state.m + i, narrow<float>(mean));
    store(state.v + i, narrow<float>(square));
    if (state.copy != nullptr) store(state.copy + i, narrow<Copy>(w));
  } else {  // the last parameters
    for (std::int64_t k = i; k < end; ++k) {
      update.apply(state.weight[k], state.gradient[k], state.m[k], state.v[k], ranges.contains(k));
      if (state.copy != nullptr) state.copy[k] = from_float<Copy>(state.weight[k]);
    }
  }
}

/// The sum of the squares of those values that count.
template <int kWidth>
__device__ double squares_of(const Elements<float, kWidth>& elements, const ChunkRanges& counted,
                             std::int64_t i) {
  const Values<kWidth> values = widen(elements);
  double sum = 0.0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const double value = counted.contains(i + k) ? values[k] : 0.0f;
    sum += value * value;
  }
  return sum;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_squares(const float* x, std::int64_t size, IndexRanges counted, double* partials) {
  constexpr int kUnroll = 4;
  constexpr int kStep = kThreads * kWidth;
  double sum = 0.0;
  for (std::int64_t begin = blockIdx.x * kChunk; begin < size; begin += kSumBlocks * kChunk) {
    const std::int64_t end = min(size, begin + kChunk);
    const std::int64_t whole = end - (end - begin) % kWidth;
    const ChunkRanges ranges(counted, begin, end);
    if (ranges.uniform() && !ranges.contains(begin)) continue;
    for (std::int64_t first = begin + threadIdx.x * kWidth; first < whole;
         first += kStep * kUnroll) {
      Elements<float, kWidth> elements[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (first + u * kStep < whole) elements[u] = load<kWidth>(x + first + u * kStep);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (first + u * kStep < whole) sum += squares_of(elements[u], ranges, first + u * kStep);
    }
    if (whole + threadIdx.x < end)
      sum += squares_of(load<1>(x + whole + threadIdx.x), ranges, whole + threadIdx.x);
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <typename Copy>
void launch_update(const AdamW& args, Copy* copy, const Context& context) {
  const State<Copy> state{args.weight.as<float>(),
                          args.gradient.as<float>(),
                          args.m.as<float>(),
                          args.v.as<float>(),
                          copy,
                          args.weight.size()};
  const auto launch = [&](auto width) {
    constexpr std::int64_t kGroup = kThreads * width;
    const auto blocks = static_cast<unsigned>((state.size + kGroup - 1) / kGroup);
    update_parameters<Copy, width>
        <<<blocks, kThreads, 0, context.stream>>>(Update(args), state, args.decayed);
    TRIREME_CUDA_LAUNCHED(update_parameters);
  };
  const bool vectors = aligned16(state.weight) && aligned16(state.gradient) && aligned16(state.m) &&
                       aligned16(state.v) &&
                       reinterpret_cast<std::uintptr_t>(copy) % sizeof(Elements<Copy, 4>) == 0;
  dispatch_width<float>(vectors, launch);
}

}  // namespace

void adamw(const AdamW& args, const Context& context) {
  const std::int64_t size = args.weight.size();
  check_vector("adamw", "weight", args.weight, DType::f32, size);
  check_vector("adamw", "gradient", args.gradient, DType::f32, size);
  check_vector("adamw", "m", args.m, DType::f32, size);
  check_vector("adamw", "v", args.v, DType::f32, size);
  if (args.copy) check_vector("adamw", "copy", args.copy, args.copy.dtype, size);
  TRIREME_CHECK(args.step >= 1, "adamw: step {}, but updates count from 1", args.step);
  if (size == 0) return;
  dispatch_cuda(args.copy ? args.copy.dtype : DType::f32, [&](auto zero) {
    using Copy = decltype(zero);
    launch_update(args, args.copy ? args.copy.as<Copy>() : nullptr, context);
  });
}

void squared_sum(const SquaredSum& args, const Context& context) {
  const std::int64_t size = args.x.size();
  check_vector("squared_sum", "x", args.x, DType::f32, size);
  check_vector("squared_sum", "out", args.out, DType::f64, 1);
  check_workspace("squared_sum", context, squared_sum_workspace());
  if (size == 0) return;
  const float* x = args.x.as<float>();
  auto* partials = reinterpret_cast<double*>(context.workspace);
  dispatch_width<float>(aligned16(x), [&](auto width) {
    sum_squares<width>
        <<<kSumBlocks, kThreads, 0, context.stream>>>(x, size, args.counted, partials);
    TRIREME_CUDA_LAUNCHED(sum_squares);
  });
  add_partial_sum(partials, kSumBlocks, args.out.as<double>(), context);
}

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

// ---- zero_count

namespace {

template <int kWidth>
__device__ int zeros_of(const Elements<float, kWidth>& elements, const ChunkRanges& counted,
                        std::int64_t i) {
  const Values<kWidth> values = widen(elements);
  int zeros = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) zeros += values[k] == 0.0f && counted.contains(i + k);
  return zeros;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    count_zeros(const float* x, std::int64_t size, IndexRanges counted, double* partials) {
  // A thread sees at most size / (kSumBlocks * kThreads) elements, far below 2^31.
  int zeros = 0;
  for (std::int64_t begin = blockIdx.x * kChunk; begin < size; begin += kSumBlocks * kChunk) {
    const std::int64_t end = min(size, begin + kChunk);
    const std::int64_t whole = end - (end - begin) % kWidth;
    const ChunkRanges ranges(counted, begin, end);
    if (ranges.uniform() && !ranges.contains(begin)) continue;
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x * kWidth; i < whole; i += kThreads * kWidth)
      zeros += zeros_of(load<kWidth>(x + i), ranges, i);
    if (whole + threadIdx.x < end)
      zeros += zeros_of(load<1>(x + whole + threadIdx.x), ranges, whole + threadIdx.x);
  }
  const double sum = block_sum<kThreads>(static_cast<double>(zeros));
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

}  // namespace

void zero_count(const ZeroCount& args, const Context& context) {
  const std::int64_t size = args.x.size();
  check_vector("zero_count", "x", args.x, DType::f32, size);
  check_vector("zero_count", "out", args.out, DType::f64, 1);
  check_workspace("zero_count", context, squared_sum_workspace());
  if (size == 0) return;
  const float* x = args.x.as<float>();
  auto* partials = reinterpret_cast<double*>(context.workspace);
  dispatch_width<float>(aligned16(x), [&](auto width) {
    count_zeros<width>
        <<<kSumBlocks, kThreads, 0, context.stream>>>(x, size, args.counted, partials);
    TRIREME_CUDA_LAUNCHED(count_zeros);
  });
  add_partial_sum(partials, kSumBlocks, args.out.as<double>(), context);
}

// ---- checksum

namespace {

constexpr std::int64_t kChecksumBlocks = 1024;

template <typename Bits>
__global__ void __launch_bounds__(kThreads)
    add_checksum(const Bits* x, std::int64_t size, unsigned long long* out) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  unsigned long long sum = 0;
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += stride)
    sum += x[i] * checksum_weight(static_cast<std::uint64_t>(i));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, distance);
  // Addition modulo 2^64 gives the same sum in any order.
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

}  // namespace

void checksum(const Checksum& args, const Context& context) {
  const std::int64_t size = args.x.size();
  if (size == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min((size + kThreads - 1) / kThreads, kChecksumBlocks));
  auto* out = reinterpret_cast<unsigned long long*>(args.out);
  const auto launch = [&](auto bits) {
    add_checksum<<<blocks, kThreads, 0, context.stream>>>(
        static_cast<const decltype(bits)*>(args.x.data), size, out);
    TRIREME_CUDA_LAUNCHED(add_checksum);
  };
  switch (size_of(args.x.dtype)) {
    case 8:
      return launch(std::uint64_t{});
    case 4:
      return launch(std::uint32_t{});
    case 2:
      return launch(std::uint16_t{});
    default:
      return launch(std::uint8_t{});
  }
}

}  // namespace trireme::kernels::cuda
