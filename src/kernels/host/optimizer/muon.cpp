// Muon's momentum and Newton-Schulz arithmetic, and scaled copies of matrices.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/tensor.hpp"
#include "kernels/host/compute.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

/// Elements that one task works on.
constexpr std::int64_t kMuonBlock = 16384;

template <typename T>
void accumulate(const MuonMomentum& args) {
  const T* gradient = args.gradient.as<T>();
  T* m = args.m.as<T>();
  T* out = args.out ? args.out.as<T>() : nullptr;
  const T momentum = static_cast<T>(args.momentum), scale = static_cast<T>(args.gradient_scale);
  const T ahead = args.nesterov ? momentum : T{0};  // out = g + momentum m, or m
  const T own = args.nesterov ? T{0} : T{1};
  parallel_blocks(args.m.size(), kMuonBlock, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const T g = gradient[i] * scale;
      m[i] = momentum * m[i] + g;
      if (out != nullptr) out[i] = args.nesterov ? g + ahead * m[i] : own * m[i];
    }
  });
}

/// The sum of the squares of x [n], in an order that only n fixes.
template <typename T>
double squares(const T* x, std::int64_t n) {
  const std::int64_t blocks = (n + kMuonBlock - 1) / kMuonBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  parallel_for(blocks, [&](std::int64_t block) {
    const T* begin = x + block * kMuonBlock;
    sums[block] = sum_of(std::min(kMuonBlock, n - block * kMuonBlock), [&](std::int64_t i) {
      return static_cast<double>(begin[i]) * static_cast<double>(begin[i]);
    });
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

/// Whether one of the two types is the accumulation type of the other, or they are equal.
bool converts(DType from, DType to) {
  return from == to || accumulation_type(from) == to || accumulation_type(to) == from;
}

}  // namespace

void muon_momentum(const MuonMomentum& args) {
  const char* op = "muon_momentum";
  const DType dtype = args.m.dtype;
  check_vector(op, "gradient", args.gradient, dtype, args.m.size());
  if (args.out) check_vector(op, "out", args.out, dtype, args.m.size());
  dispatch(dtype, [&](auto zero) { accumulate<decltype(zero)>(args); });
}

void muon_normalize(const MuonNormalize& args) {
  check_vector("muon_normalize", "out", args.out, args.x.dtype, args.x.size());
  dispatch(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = args.x.as<T>();
    T* out = args.out.as<T>();
    const T factor = static_cast<T>(1.0 / (std::sqrt(squares(x, args.x.size())) + 1e-7));
    parallel_blocks(args.x.size(), kMuonBlock, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) out[i] = x[i] * factor;
    });
  });
}

void muon_polynomial(const MuonPolynomial& args) {
  const char* op = "muon_polynomial";
  const std::int64_t r = args.gram.shape[0];
  for (const Tensor& tensor : {args.gram, args.gram_squared, args.out})
    check_matrix(op, "gram", tensor, args.gram.dtype, {r, r});
  dispatch(args.gram.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *gram = args.gram.as<T>(), *squared = args.gram_squared.as<T>();
    T* out = args.out.as<T>();
    const T a = static_cast<T>(args.a), b = static_cast<T>(args.b), c = static_cast<T>(args.c);
    parallel_for(r, [&](std::int64_t row) {
#pragma omp simd
      for (std::int64_t i = row * r; i < (row + 1) * r; ++i) out[i] = b * gram[i] + c * squared[i];
      out[row * r + row] += a;
    });
  });
}

void scaled_copy(const ScaledCopy& args) {
  TRIREME_CHECK(converts(args.x.dtype, args.out.dtype), "scaled_copy: {} to {}",
                name_of(args.x.dtype), name_of(args.out.dtype));
  const auto last = [&](std::int64_t stride) { return (args.rows - 1) * stride + args.columns; };
  TRIREME_CHECK(
      args.rows == 0 ||
          (last(args.x_stride) <= args.x.size() && last(args.out_stride) <= args.out.size()),
      "scaled_copy: {} rows of {} columns are more than there is", args.rows, args.columns);
  const DType dtype = accumulation_type(args.x.dtype);
  const auto row_of = [](const Tensor& tensor, std::int64_t element) {
    return static_cast<std::byte*>(tensor.data) + element * size_of(tensor.dtype);
  };
  parallel_for(args.rows, [&](std::int64_t row) {
    const void* from = row_of(args.x, row * args.x_stride);
    void* to = row_of(args.out, row * args.out_stride);
    dispatch(dtype, [&](auto zero) {
      using T = decltype(zero);
      struct Row;
      const T factor = static_cast<T>(args.factor);
      T* values = scratch<T, Row>(args.columns);
      const bool widens = args.x.dtype != dtype, narrows = args.out.dtype != dtype;
      if constexpr (std::is_same_v<T, float>)
        if (widens) convert_to_float(from, args.columns, args.x.dtype, values);
      const T* read = widens ? values : static_cast<const T*>(from);
      T* write = narrows ? values : static_cast<T*>(to);
#pragma omp simd
      for (std::int64_t i = 0; i < args.columns; ++i) write[i] = factor * read[i];
      if constexpr (std::is_same_v<T, float>)
        if (narrows) convert_from_float(values, args.columns, args.out.dtype, to);
    });
  });
}

}  // namespace trireme::kernels::host
