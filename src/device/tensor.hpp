// A view of a tensor in some backend's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/shape.hpp"

namespace trireme {

/// A contiguous row-major tensor in memory that something else owns. Copying a Tensor copies the
/// view.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

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
    return {data, dtype, other};
  }

  /// Rows [begin, begin + count) along the first axis.
  Tensor rows(std::int64_t begin, std::int64_t count) const {
    TRIREME_CHECK(begin >= 0 && begin + count <= shape[0], "rows {}+{} of shape {}", begin, count,
                  to_string(shape));
    Shape part = shape;
    part[0] = count;
    return {static_cast<std::byte*>(data) + begin * shape.stride(0) * size_of(dtype), dtype, part};
  }
};

}  // namespace trireme
