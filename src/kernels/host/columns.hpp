// Sums over the rows of a matrix.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/host/threads.hpp"

namespace trireme::kernels::host {

/// Columns that one task of a sum over rows takes: a few cache lines of each row.
inline constexpr std::int64_t kColumnBlock = 64;

/// Adds the sum over t in [0, rows) of element(t, i) to out[i], i in [0, columns). Each column is
/// summed in double in the order of its rows, so the number of threads does not matter.
template <typename T, typename Element>
void add_column_sums(std::int64_t rows, std::int64_t columns, T* out, const Element& element) {
  parallel_blocks(columns, kColumnBlock, [&](std::int64_t begin, std::int64_t end) {
    std::array<double, kColumnBlock> sums{};
    for (std::int64_t t = 0; t < rows; ++t) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) sums[i - begin] += element(t, i);
    }
    for (std::int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(out[i] + sums[i - begin]);
  });
}

}  // namespace trireme::kernels::host
