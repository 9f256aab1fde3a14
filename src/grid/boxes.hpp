// Which part of a logical tensor lies where in a rank's memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.hpp"

namespace trireme::grid {

/// Rows [row, row + rows) and columns [column, column + columns) of a tensor. A tensor of one axis
/// has one column: its elements are its rows.
struct Box {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 1;

  std::int64_t size() const { return rows * columns; }
  bool operator==(const Box&) const = default;
};

/// A stretch of memory holds a list of boxes when it is their concatenation, each box row-major.
/// The boxes of a list must be disjoint and come in the tensor's row-major order: each begins after
/// the last element of the one before, in a later row unless both lie in one row. So do the row
/// blocks of q, k and v, a column shard, and any part that cut_boxes() makes of them.
using Boxes = std::vector<Box>;

/// Number of elements in `boxes`.
std::int64_t count_elements(const Boxes& boxes);

/// The whole of a tensor.
Box whole(const Shape& shape);

/// The boxes of elements [begin, end) of the memory that holds `boxes`: what one rank owns of a
/// shard whose memory is cut into flat ranges (ZeRO), rows cut in the middle included. Throws
/// InternalError when the range is not inside.
Boxes cut_boxes(const Boxes& boxes, std::int64_t begin, std::int64_t end);

/// Throws InternalError naming the tensor when a box leaves `shape` (one or two axes) or the order
/// above does not hold.
void check_boxes(const std::string& tensor, const Shape& shape, const Boxes& boxes);

}  // namespace trireme::grid
