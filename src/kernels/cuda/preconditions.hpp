// Preconditions of the CUDA launchers, told in words.
#pragma once

#include <cstdint>

#include "device/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

/// A tensor seen as a matrix: its leading axes folded into rows, its last axis the columns.
struct Extents {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// The extents of `tensor`; throws InternalError when it has no axis.
Extents extents_of(const char* op, const char* name, const Tensor& tensor);

/// Throws InternalError unless `tensor` is present and has `size` elements of type `dtype`.
void check_vector(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  std::int64_t size);

/// check_vector for a matrix of `extents`.
void check_matrix(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  const Extents& extents);

/// Throws InternalError unless the context has `bytes` of workspace.
void check_workspace(const char* op, const Context& context, std::size_t bytes);

/// Whether `pointer` can be read 16 bytes at a time.
inline bool aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace trireme::kernels::cuda
