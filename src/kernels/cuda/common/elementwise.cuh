// Kernels that compute each element on its own.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/divisor.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

inline constexpr int kElementwiseThreads = 256;

/// Runs function.store(i, function.load(i)) for the groups i of a tensor, function.kUnroll of them
/// a thread: all loads of a thread are issued before its first store, which may alias them.
template <typename Function>
__global__ void __launch_bounds__(kElementwiseThreads)
    compute_elements(Function function, std::int64_t groups) {
  constexpr int kUnroll = Function::kUnroll;
  wait_for_previous_kernel();
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (kElementwiseThreads * kUnroll) + threadIdx.x;
  typename Function::Inputs inputs[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = first + u * kElementwiseThreads;
    if (i < groups) inputs[u] = function.load(i);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = first + u * kElementwiseThreads;
    if (i < groups) function.store(i, inputs[u]);
  }
}

/// Queues compute_elements over `groups` groups.
template <typename Function>
void launch_elements(const Function& function, std::int64_t groups, const Context& context) {
  if (groups == 0) return;
  constexpr std::int64_t kGroups = kElementwiseThreads * Function::kUnroll;
  const auto blocks = static_cast<unsigned>((groups + kGroups - 1) / kGroups);
  launch_dependent(compute_elements<Function>, blocks, kElementwiseThreads, 0, context, function,
                   groups);
  TRIREME_CUDA_LAUNCHED(compute_elements);
}

/// Lets a function of rows and columns compute the groups of kWidth elements of a matrix.
template <typename Function, int kWidth>
struct ByRow {
  static constexpr int kUnroll = Function::kUnroll;
  using Inputs = typename Function::Inputs;

  Function function;
  Divisor groups_per_row;

  __device__ Inputs load(std::int64_t i) const {
    const std::uint32_t row = groups_per_row.quotient(static_cast<std::uint32_t>(i));
    return function.load(row, column(i, row));
  }
  __device__ void store(std::int64_t i, const Inputs& inputs) const {
    const std::uint32_t row = groups_per_row.quotient(static_cast<std::uint32_t>(i));
    function.store(row, column(i, row), inputs);
  }

 private:
  __device__ std::uint32_t column(std::int64_t i, std::uint32_t row) const {
    return (static_cast<std::uint32_t>(i) - row * groups_per_row.divisor()) * kWidth;
  }
};

/// Queues function.store(row, column, function.load(row, column)) for the groups of kWidth columns
/// of a matrix. Below 2^31 groups.
template <int kWidth, typename Function>
void launch_rows(const char* op, const Function& function, const Extents& extents,
                 const Context& context) {
  const std::int64_t groups = extents.rows * (extents.columns / kWidth);
  TRIREME_CHECK(groups < std::int64_t{1} << 31, "{}: {} rows of {} are more than 2^31 groups of {}",
                op, extents.rows, extents.columns, kWidth);
  if (groups == 0) return;
  const Divisor groups_per_row(static_cast<std::uint32_t>(extents.columns / kWidth));
  launch_elements(ByRow<Function, kWidth>{function, groups_per_row}, groups, context);
}

}  // namespace trireme::kernels::cuda
