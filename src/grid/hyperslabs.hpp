// Which elements of a logical tensor a rank's memory holds, as hyperslabs (HDF5's term).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.hpp"

namespace trireme::grid {

/// Rows [row, row + rows) and columns [column, column + columns) of a tensor. A tensor of one axis
/// has one column: its elements are its rows.
struct Hyperslab {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 1;

  std::int64_t size() const { return rows * columns; }
  bool operator==(const Hyperslab&) const = default;
};

/// The concatenation of hyperslabs in memory, each row-major. They must be disjoint and sorted in
/// the tensor's row-major order: each begins after the last element of the one before, in a later
/// row unless both lie in one row. This holds for the row blocks of q, k and v, for a column shard,
/// and for every result of slice_hyperslabs() on them.
using Hyperslabs = std::vector<Hyperslab>;

/// Number of elements in `slabs`.
std::int64_t count_elements(const Hyperslabs& slabs);

/// The hyperslab of a whole tensor of one or two axes; InternalError for others.
Hyperslab whole_tensor(const Shape& shape);

/// The hyperslabs of elements [begin, end) of the memory of `slabs`: what one rank owns of a shard
/// that ZeRO partitions into flat ranges, which may begin and end inside a row. Throws
/// InternalError when the range is not inside.
Hyperslabs slice_hyperslabs(const Hyperslabs& slabs, std::int64_t begin, std::int64_t end);

/// Throws InternalError naming the tensor when a slab leaves `shape` (one or two axes) or the order
/// above does not hold.
void check_hyperslabs(const std::string& tensor, const Shape& shape, const Hyperslabs& slabs);

}  // namespace trireme::grid
