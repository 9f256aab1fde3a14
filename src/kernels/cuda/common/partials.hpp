// The second stage of sums that many blocks make: their partial sums, left in the workspace, are
// added in the order of the blocks, so that the result never varies.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

/// Vectors of `width` elements each, to which as many columns of partial sums belong; those of null
/// vectors are passed over.
struct PartialTargets {
  std::int64_t width = 0;
  int count = 1;
  float* vectors[3] = {};
};

/// Adds the column sums of partials [count, targets.count * targets.width] to the targets.
void add_partial_columns(const float* partials, std::int64_t count, const PartialTargets& targets,
                         const Context& context);

/// Adds the sum of partials [count] to out [1].
void add_partial_sum(const double* partials, int count, double* out, const Context& context);

}  // namespace trireme::kernels::cuda
