#include "kernels/cuda/preconditions.hpp"

namespace trireme::kernels::cuda {

Extents extents_of(const char* op, const char* name, const Tensor& tensor) {
  const int rank = tensor.shape.rank();
  TRIREME_CHECK(rank >= 1, "{}: {} has no axis", op, name);
  const std::int64_t columns = tensor.shape[rank - 1];
  return {columns == 0 ? 0 : tensor.size() / columns, columns};
}

void check_vector(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  std::int64_t size) {
  TRIREME_CHECK(tensor.size() == size, "{}: {} has {} elements, expected {}", op, name,
                tensor.size(), size);
  TRIREME_CHECK(tensor.data != nullptr || size == 0, "{}: {} has no memory", op, name);
  TRIREME_CHECK(tensor.dtype == dtype, "{}: {} is {}, expected {}", op, name, name_of(tensor.dtype),
                name_of(dtype));
}

void check_matrix(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  const Extents& extents) {
  const Extents found = extents_of(op, name, tensor);
  TRIREME_CHECK(found.rows == extents.rows && found.columns == extents.columns,
                "{}: {} is {}, expected {} rows of {}", op, name, to_string(tensor.shape),
                extents.rows, extents.columns);
  check_vector(op, name, tensor, dtype, extents.rows * extents.columns);
}

void check_workspace(const char* op, const Context& context, std::size_t bytes) {
  TRIREME_CHECK(context.workspace_bytes >= bytes, "{}: needs {} bytes of workspace, has {}", op,
                bytes, context.workspace_bytes);
}

}  // namespace trireme::kernels::cuda
