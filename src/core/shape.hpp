// Shapes of tensors: up to four extents.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace trireme {

/// Extents of a row-major tensor, outermost first. At most four.
class Shape {
 public:
  /// No axes: one element.
  Shape() = default;
  /// Throws InternalError for more than four extents.
  Shape(std::initializer_list<std::int64_t> extents);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[axis]; }
  std::int64_t& operator[](int axis) { return extents_[axis]; }

  /// Number of elements; 1 for a shape without axes.
  std::int64_t size() const;

  /// Product of the extents after `axis`: the stride of `axis` in a contiguous tensor.
  std::int64_t stride(int axis) const;

  bool operator==(const Shape& other) const = default;

 private:
  std::array<std::int64_t, 4> extents_{};
  int rank_ = 0;
};

/// "[3, 4]".
std::string to_string(const Shape& shape);

}  // namespace trireme
