// Shapes, and views of tensors in some backend's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.hpp"
#include "core/error.hpp"

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

/// A contiguous row-major tensor in memory that something else owns. Copying a Tensor copies the
/// view.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  /// For the elements of types that need one: a value is its element times *scale. One number in
  /// the memory that `data` is in; null for 1.
  const float* scale = nullptr;

  std::int64_t size() const { return shape.size(); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
  explicit operator bool() const { return data != nullptr; }

  /// The elements as `T`; T must be the tensor's type.
  template <typename T>
  T* as() const {
    TRIREME_CHECK(dtype == dtype_of<T>, "a tensor of {} was asked for {}", name_of(dtype),
                  name_of(dtype_of<T>));
    return static_cast<T*>(data);
  }

  /// The same elements under another shape of equal size.
  Tensor view(Shape other) const {
    TRIREME_CHECK(other.size() == size(), "shape {} cannot be viewed as {}", to_string(shape),
                  to_string(other));
    return {data, dtype, other, scale};
  }

  /// Rows [begin, begin + count) along the first axis.
  Tensor rows(std::int64_t begin, std::int64_t count) const {
    TRIREME_CHECK(begin >= 0 && begin + count <= shape[0], "rows {}+{} of shape {}", begin, count,
                  to_string(shape));
    Shape part = shape;
    part[0] = count;
    return {static_cast<std::byte*>(data) + begin * shape.stride(0) * size_of(dtype), dtype, part,
            scale};
  }
};

}  // namespace trireme
