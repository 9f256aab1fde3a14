// The second stage of sums that many blocks make: their partial sums, left in the workspace, are
// added in the order of the blocks, so that the result never varies.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

/// Adds the column sums of partials [count, columns] to out: column i to first[i] when below
/// `split`, else to second[i - split].
void add_partial_columns(const float* partials, std::int64_t count, std::int64_t columns,
                         float* first, std::int64_t split, float* second, const Context& context);

/// Adds the sum of partials [count] to out [1].
void add_partial_sum(const double* partials, int count, double* out, const Context& context);

}  // namespace trireme::kernels::cuda
