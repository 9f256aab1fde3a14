// The ends of a transformer's sublayers. Bound by bytes: dropout_backward moves 4 bytes an element
// in half precision, bias_dropout_residual 6, and 8 with the layer normalisation that follows,
// which alone would read 2 of them again. With dropout the first is about as much bound by the
// drawing.
#include "kernels/norms.hpp"

#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/normalize.cuh"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {
namespace {

/// Draws the mask of rows (position, sample) of h features, from position `first` on.
struct RowMask {
  DropoutMask mask;
  Divisor batch;
  std::uint32_t h, first;

  RowMask(const Dropout& dropout, const Shape& shape, std::int64_t first_position)
      : mask(dropout),
        batch(static_cast<std::uint32_t>(shape[1])),
        h(static_cast<std::uint32_t>(shape[2])),
        first(static_cast<std::uint32_t>(first_position)) {}

  template <int kWidth>
  __device__ void apply(Values<kWidth>& values, std::uint32_t row, std::uint32_t column) const {
    const std::uint32_t position = batch.quotient(row);
    const std::uint32_t sample = row - position * batch.divisor();
    mask.apply(values.values, sample, (std::uint64_t{first} + position) * h + column);
  }
};

template <typename T, int kWidth>
struct ScaleGradient {
  static constexpr int kUnroll = 4;
  using Inputs = Elements<T, kWidth>;

  const T* dout;
  T* dx;
  float* amax;
  RowMask mask;

  __device__ LargestMagnitude<T> largest() const { return LargestMagnitude<T>(amax); }
  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    return cuda::load<kWidth>(dout + std::int64_t{row} * mask.h + column);
  }
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs& inputs,
                        LargestMagnitude<T>& largest) const {
    Values<kWidth> values = widen(inputs);
    mask.apply(values, row, column);
    const Elements<T, kWidth> rounded = narrow<T>(values);
    largest.take(rounded);
    cuda::store(dx + std::int64_t{row} * mask.h + column, rounded);
  }
};

/// residual + dropout(x + bias), group by group or row by row.
template <typename T, int kWidth>
struct ResidualSum {
  static constexpr int kUnroll = 2;
  struct Inputs {
    Elements<T, kWidth> x, residual;
  };

  const T* x;
  const T* bias;  // or null
  const T* residual;
  T* out;
  RowMask mask;

  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    const std::int64_t offset = std::int64_t{row} * mask.h + column;
    return {cuda::load<kWidth>(x + offset), cuda::load<kWidth>(residual + offset)};
  }
  __device__ Elements<T, kWidth> finish(std::uint32_t row, std::uint32_t column,
                                        const Inputs& inputs) const {
    Values<kWidth> values = widen(inputs.x);
    const Values<kWidth> residual = widen(inputs.residual);
    if (bias != nullptr) {
      const Values<kWidth> shift = widen(cuda::load<kWidth>(bias + column));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += shift[i];
    }
    mask.apply(values, row, column);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += residual[i];
    const Elements<T, kWidth> rounded = narrow<T>(values);
    cuda::store(out + std::int64_t{row} * mask.h + column, rounded);
    return rounded;
  }
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs& inputs) const {
    finish(row, column, inputs);
  }
};

/// ResidualSum where x is the sum of the ranks' terms. Most bytes come over the links between GPUs,
/// those of the second rank in the same round as the first one's and the residual.
template <typename T, int kWidth>
struct TermsResidualSum {
  struct Inputs {
    Elements<T, kWidth> first, second, residual;
  };

  PeerTerms terms;  // 2 or more
  ResidualSum<T, kWidth> sum;

  __device__ Elements<T, kWidth> load_term(int rank, std::uint32_t row,
                                           std::uint32_t column) const {
    return cuda::load<kWidth>(static_cast<const T*>(terms.terms[rank]) +
                              std::int64_t{row} * sum.mask.h + column);
  }
  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    return {load_term(0, row, column), load_term(1, row, column),
            cuda::load<kWidth>(sum.residual + std::int64_t{row} * sum.mask.h + column)};
  }
  __device__ Elements<T, kWidth> finish(std::uint32_t row, std::uint32_t column,
                                        const Inputs& inputs) const {
    Values<kWidth> x = widen(inputs.first);
    const auto add = [&x](const Elements<T, kWidth>& term) {
      const Values<kWidth> values = widen(term);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] += values[i];
    };
    add(inputs.second);
    for (int rank = 2; rank < terms.count; ++rank) add(load_term(rank, row, column));
    return sum.finish(row, column, {narrow<T>(x), inputs.residual});
  }
};

/// Checks a tensor [s, b, h] as the positions and samples of a mask.
Extents check_masked(const char* op, const char* name, const Tensor& tensor,
                     const Dropout& dropout) {
  TRIREME_CHECK(tensor.shape.rank() == 3, "{}: {} is {}, expected [s, b, h]", op, name,
                to_string(tensor.shape));
  const Extents extents = extents_of(op, name, tensor);
  TRIREME_CHECK(extents.rows < std::int64_t{1} << 31, "{}: {} has 2^31 rows or more", op, name);
  check_matrix(op, name, tensor, tensor.dtype, extents);
  check_dropout(op, dropout);
  return extents;
}

Extents check_residual_sum(const char* op, const BiasDropoutResidual& args) {
  const Extents extents = check_masked(op, "x", args.x, args.dropout);
  if (args.bias) check_vector(op, "bias", args.bias, args.x.dtype, extents.columns);
  check_matrix(op, "residual", args.residual, args.x.dtype, extents);
  check_matrix(op, "out", args.out, args.x.dtype, extents);
  return extents;
}

template <typename T>
const T* bias_of(const BiasDropoutResidual& args) {
  return args.bias ? args.bias.as<T>() : nullptr;
}

template <typename T>
bool residual_sum_aligned(const BiasDropoutResidual& args, std::int64_t columns) {
  return rows_aligned16<T>(columns, args.x.as<T>(), bias_of<T>(args), args.residual.as<T>(),
                           args.out.as<T>());
}

template <typename T, int kWidth>
ResidualSum<T, kWidth> residual_sum(const BiasDropoutResidual& args) {
  return {args.x.as<T>(), bias_of<T>(args), args.residual.as<T>(), args.out.as<T>(),
          RowMask(args.dropout, args.x.shape, args.first_position)};
}

}  // namespace

void dropout_backward(const DropoutBackward& args, const Context& context) {
  const char* op = "dropout_backward";
  const DType dtype = args.dout.dtype;
  const Extents extents = check_masked(op, "dout", args.dout, args.dropout);
  check_matrix(op, "dx", args.dx, dtype, extents);
  if (extents.rows == 0) return;
  if (args.dropout.probability == 0.0) {
    if (args.dx.data != args.dout.data)
      TRIREME_CUDA(cudaMemcpyAsync(args.dx.data, args.dout.data, args.dout.bytes(),
                                   cudaMemcpyDeviceToDevice, context.stream));
    return raise_amax(args.dx, context);
  }
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    T* dx = args.dx.as<T>();
    dispatch_width<T>(rows_aligned16<T>(extents.columns, dout, dx), [&](auto width) {
      const RowMask mask(args.dropout, args.dout.shape, args.first_position);
      launch_rows<width>(op, ScaleGradient<T, width>{dout, dx, args.dx.amax, mask}, extents,
                         context);
    });
  });
}

void bias_dropout_residual(const BiasDropoutResidual& args, const Context& context) {
  const char* op = "bias_dropout_residual";
  const Extents extents = check_residual_sum(op, args);
  if (extents.rows == 0) return;
  dispatch_cuda(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    dispatch_width<T>(residual_sum_aligned<T>(args, extents.columns), [&](auto width) {
      launch_rows<width>(op, residual_sum<T, width>(args), extents, context);
    });
  });
}

void bias_dropout_residual_norm(const BiasDropoutResidualNorm& args, const Context& context) {
  const char* op = "bias_dropout_residual_norm";
  const BiasDropoutResidual& sum = args.sum;
  const Extents extents = check_residual_sum(op, sum);
  check_normalization(op, sum.x.dtype, extents, args.kind, args.weight, args.norm_bias, args.norm,
                      args.mean, args.rstd);
  if (extents.rows == 0) return;
  dispatch_cuda(sum.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Normalization<T> norm = normalization<T>(args.kind, args.weight, args.norm_bias,
                                                   args.norm, args.mean, args.rstd, args.eps);
    const bool vectors = residual_sum_aligned<T>(sum, extents.columns) &&
                         rows_aligned16<T>(extents.columns, norm.weight, norm.bias, norm.out);
    TRIREME_CHECK(!args.terms || (vectors && adds_terms(sum.x.dtype, extents.columns)),
                  "{}: terms of rows of {} elements in {}", op, extents.columns,
                  name_of(sum.x.dtype));
    if constexpr (sizeof(T) == 2)
      if (args.terms) {
        constexpr int kWidth = 16 / sizeof(T);
        return launch_normalize<kWidth>(
            TermsResidualSum<T, kWidth>{args.terms, residual_sum<T, kWidth>(sum)}, norm, extents,
            context);
      }
    dispatch_width<T>(vectors, [&](auto width) {
      launch_normalize<width>(residual_sum<T, width>(sum), norm, extents, context);
    });
  });
}

}  // namespace trireme::kernels::cuda
