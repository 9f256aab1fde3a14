#include "core/tensor.hpp"

#include "core/error.hpp"

namespace trireme {

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  TRIREME_CHECK(extents.size() <= extents_.size(), "{} extents; at most 4 are held",
                extents.size());
  for (std::int64_t extent : extents) extents_[rank_++] = extent;
}

std::int64_t Shape::size() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) product *= extents_[axis];
  return product;
}

std::int64_t Shape::stride(int axis) const {
  std::int64_t product = 1;
  for (int later = axis + 1; later < rank_; ++later) product *= extents_[later];
  return product;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis)
    text += fmt::format("{}{}", axis ? ", " : "", shape[axis]);
  return text + "]";
}

}  // namespace trireme
