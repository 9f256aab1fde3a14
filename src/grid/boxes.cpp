#include "grid/boxes.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::grid {
namespace {

/// Appends elements [begin, end) of one box, counted in its own row-major order: at most a last
/// part of a row, whole rows, and a first part of a row.
void append_part(Boxes& parts, const Box& box, std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    const std::int64_t column = begin % box.columns;
    const bool starts_a_row = column == 0 && end - begin >= box.columns;
    const std::int64_t rows = starts_a_row ? (end - begin) / box.columns : 1;
    const std::int64_t columns =
        starts_a_row ? box.columns : std::min(box.columns - column, end - begin);
    parts.push_back({box.row + begin / box.columns, rows, box.column + column, columns});
    begin += rows * columns;
  }
}

}  // namespace

std::int64_t count_elements(const Boxes& boxes) {
  std::int64_t count = 0;
  for (const Box& box : boxes) count += box.size();
  return count;
}

Box whole(const Shape& shape) {
  TRIREME_CHECK(shape.rank() == 1 || shape.rank() == 2,
                "a tensor of shape {} has {} axes, not 1 or 2", to_string(shape), shape.rank());
  return {0, shape[0], 0, shape.rank() == 2 ? shape[1] : 1};
}

Boxes cut_boxes(const Boxes& boxes, std::int64_t begin, std::int64_t end) {
  TRIREME_CHECK(0 <= begin && begin <= end && end <= count_elements(boxes),
                "elements [{}, {}) of boxes with {}", begin, end, count_elements(boxes));
  Boxes parts;
  std::int64_t offset = 0;
  for (const Box& box : boxes) {
    append_part(parts, box, std::max<std::int64_t>(begin - offset, 0),
                std::min(end - offset, box.size()));
    offset += box.size();
  }
  return parts;
}

void check_boxes(const std::string& tensor, const Shape& shape, const Boxes& boxes) {
  const Box all = whole(shape);
  const Box* last = nullptr;
  for (const Box& box : boxes) {
    TRIREME_CHECK(box.row >= 0 && box.rows > 0 && box.row + box.rows <= all.rows &&
                      box.column >= 0 && box.columns > 0 && box.column + box.columns <= all.columns,
                  "tensor '{}' {}: rows {}+{}, columns {}+{} are not inside", tensor,
                  to_string(shape), box.row, box.rows, box.column, box.columns);
    if (last) {
      const bool same_row = last->rows == 1 && box.rows == 1 && last->row == box.row;
      TRIREME_CHECK(
          same_row ? last->column + last->columns <= box.column : last->row + last->rows <= box.row,
          "tensor '{}' {}: the box at row {}, column {} does not come after the one at "
          "row {}, column {}",
          tensor, to_string(shape), box.row, box.column, last->row, last->column);
    }
    last = &box;
  }
}

}  // namespace trireme::grid
