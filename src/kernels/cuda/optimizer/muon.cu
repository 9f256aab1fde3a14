// Muon's momentum and Newton-Schulz arithmetic, and scaled copies of matrices; bound by bytes.
#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/workspace.hpp"
#include "kernels/optimizer.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Out>
struct Momentum {
  const float* gradient;
  float* m;
  Out* out;  // null: none
  float momentum, gradient_scale;
  bool nesterov;

  __device__ void operator()(std::int64_t i, bool) const {
    const float g = gradient[i] * gradient_scale;
    const float after = momentum * m[i] + g;
    m[i] = after;
    if (out != nullptr) out[i] = from_float<Out>(nesterov ? g + momentum * after : after);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_matrix_squares(const T* x, std::int64_t size, double* partials) {
  double sum = 0.0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += std::int64_t{kSumBlocks} * kThreads) {
    const double value = to_float(x[i]);
    sum += value * value;
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Each block adds the partial sums again, in the same order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    divide_by_norm(const T* x, T* out, std::int64_t size, const double* partials) {
  __shared__ float factor;
  double sum = 0.0;
  for (int i = threadIdx.x; i < kSumBlocks; i += kThreads) sum += partials[i];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) factor = static_cast<float>(1.0 / (sqrt(sum) + 1e-7));
  __syncthreads();
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += std::int64_t{gridDim.x} * kThreads)
    out[i] = from_float<T>(to_float(x[i]) * factor);
}

/// Element i of [r, r] lies on the diagonal where r + 1 divides i.
template <typename T>
struct Polynomial {
  const T* gram;
  const T* squared;
  T* out;
  std::uint32_t r;
  float a, b, c;

  __device__ void operator()(std::int64_t i, bool) const {
    const float value = b * to_float(gram[i]) + c * to_float(squared[i]);
    const bool diagonal = static_cast<std::uint32_t>(i) % (r + 1) == 0;
    out[i] = from_float<T>(diagonal ? value + a : value);
  }
};

template <typename From, typename To, int kWidth>
struct Scaled {
  static constexpr int kUnroll = 2;
  using Inputs = Elements<From, kWidth>;

  const From* x;
  To* out;
  std::int64_t x_stride, out_stride;
  float factor;

  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    return cuda::load<kWidth>(x + row * x_stride + column);
  }
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs& inputs) const {
    Values<kWidth> values = widen(inputs);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) values[k] *= factor;
    cuda::store(out + row * out_stride + column, narrow<To>(values));
  }
};

template <typename From, typename To>
void launch_scaled(const ScaledCopy& args, const Context& context) {
  const From* x = args.x.as<From>();
  To* out = args.out.as<To>();
  const Extents extents{args.rows, args.columns};
  const auto launch = [&](auto width) {
    launch_rows<width>("scaled_copy",
                       Scaled<From, To, width>{x, out, args.x_stride, args.out_stride,
                                               static_cast<float>(args.factor)},
                       extents, context);
  };
  const bool vectors = args.columns % 4 == 0 && args.x_stride % 4 == 0 &&
                       args.out_stride % 4 == 0 && aligned16(x) && aligned16(out);
  if (vectors)
    launch(std::integral_constant<int, 4>{});
  else
    launch(std::integral_constant<int, 1>{});
}

}  // namespace

void muon_momentum(const MuonMomentum& args, const Context& context) {
  const char* op = "muon_momentum";
  const std::int64_t size = args.m.size();
  check_vector(op, "gradient", args.gradient, DType::f32, size);
  check_vector(op, "m", args.m, DType::f32, size);
  if (args.out) check_vector(op, "out", args.out, args.out.dtype, size);
  dispatch_cuda(args.out ? args.out.dtype : DType::f32, [&](auto zero) {
    using Out = decltype(zero);
    launch_flat(
        Momentum<Out>{args.gradient.as<float>(), args.m.as<float>(),
                      args.out ? args.out.as<Out>() : nullptr, static_cast<float>(args.momentum),
                      static_cast<float>(args.gradient_scale), args.nesterov},
        size, {}, context);
  });
}

void muon_normalize(const MuonNormalize& args, const Context& context) {
  const char* op = "muon_normalize";
  const std::int64_t size = args.x.size();
  check_vector(op, "out", args.out, args.x.dtype, size);
  check_workspace(op, context, squared_sum_workspace());
  if (size == 0) return;
  auto* partials = reinterpret_cast<double*>(context.workspace);
  dispatch_cuda(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    sum_matrix_squares<T><<<kSumBlocks, kThreads, 0, context.stream>>>(x, size, partials);
    TRIREME_CUDA_LAUNCHED(sum_matrix_squares);
    const auto blocks = static_cast<unsigned>(
        std::min<std::int64_t>((size + kThreads - 1) / kThreads, 8 * std::int64_t{context.sms}));
    divide_by_norm<T><<<blocks, kThreads, 0, context.stream>>>(x, args.out.as<T>(), size, partials);
    TRIREME_CUDA_LAUNCHED(divide_by_norm);
  });
}

void muon_polynomial(const MuonPolynomial& args, const Context& context) {
  const char* op = "muon_polynomial";
  const std::int64_t r = args.gram.shape[0];
  TRIREME_CHECK(r < 1 << 16, "{}: {} rows", op, r);
  for (const Tensor& tensor : {args.gram, args.gram_squared, args.out})
    check_matrix(op, "gram", tensor, args.gram.dtype, {r, r});
  dispatch_cuda(args.gram.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_flat(Polynomial<T>{args.gram.as<T>(), args.gram_squared.as<T>(), args.out.as<T>(),
                              static_cast<std::uint32_t>(r), static_cast<float>(args.a),
                              static_cast<float>(args.b), static_cast<float>(args.c)},
                r * r, {}, context);
  });
}

void scaled_copy(const ScaledCopy& args, const Context& context) {
  const char* op = "scaled_copy";
  const auto last = [&](std::int64_t stride) { return (args.rows - 1) * stride + args.columns; };
  TRIREME_CHECK(args.rows == 0 || (last(args.x_stride) <= args.x.size() &&
                                   last(args.out_stride) <= args.out.size()),
                "{}: {} rows of {} columns are more than there is", op, args.rows, args.columns);
  dispatch_cuda(args.x.dtype, [&](auto from) {
    using From = decltype(from);
    if (args.out.dtype == args.x.dtype) return launch_scaled<From, From>(args, context);
    if (args.out.dtype == DType::f32) return launch_scaled<From, float>(args, context);
    TRIREME_CHECK(args.x.dtype == DType::f32, "{}: {} to {}", op, name_of(args.x.dtype),
                  name_of(args.out.dtype));
    dispatch_cuda(args.out.dtype,
                  [&](auto to) { launch_scaled<float, decltype(to)>(args, context); });
  });
}

}  // namespace trireme::kernels::cuda
