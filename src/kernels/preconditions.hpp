// Preconditions of the launchers of all backends, told in words, and of the context of CUDA's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/error.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

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

namespace cuda {

/// Throws InternalError unless the context has `bytes` of workspace.
inline void check_workspace(const char* op, const Context& context, std::size_t bytes) {
  TRIREME_CHECK(context.workspace_bytes >= bytes, "{}: needs {} bytes of workspace, has {}", op,
                bytes, context.workspace_bytes);
}

/// Whether `pointer` can be read 16 bytes at a time.
inline bool aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace cuda
}  // namespace trireme::kernels
