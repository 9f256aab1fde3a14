// Preconditions of the launchers of all backends, told in words.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"

namespace trireme::kernels {

/// A tensor seen as a matrix: its leading axes folded into rows, its last axis the columns.
struct Extents {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// The extents of `tensor`, which has no rows where it has no columns; throws InternalError when it
/// has no axis.
Extents extents_of(const char* op, const char* name, const Tensor& tensor);

/// Throws InternalError unless `tensor` is present, has elements of type `dtype` and, as a matrix,
/// these `extents`.
void check_matrix(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  const Extents& extents);

/// Throws InternalError unless `tensor` is present and has `size` elements of type `dtype`.
void check_vector(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  std::int64_t size);

/// Throws InternalError unless `tensor` has exactly the extents `shape` and elements of `dtype`.
void check_shape(const char* op, const char* name, const Tensor& tensor, DType dtype,
                 const Shape& shape);

}  // namespace trireme::kernels
