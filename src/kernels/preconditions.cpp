#include "kernels/preconditions.hpp"

namespace trireme::kernels {
namespace {

void check_present(const char* op, const char* name, const Tensor& tensor, DType dtype) {
  TRIREME_CHECK(tensor.data != nullptr || tensor.size() == 0, "{}: {} has no memory", op, name);
  TRIREME_CHECK(tensor.dtype == dtype, "{}: {} is {}, expected {}", op, name, name_of(tensor.dtype),
                name_of(dtype));
}

}  // namespace

Extents extents_of(const char* op, const char* name, const Tensor& tensor) {
  const int rank = tensor.shape.rank();
  TRIREME_CHECK(rank > 0, "{}: {} has no axis", op, name);
  const std::int64_t columns = tensor.shape[rank - 1];
  return {columns == 0 ? 0 : tensor.size() / columns, columns};
}

void check_matrix(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  const Extents& extents) {
  check_present(op, name, tensor, dtype);
  const Extents found = extents_of(op, name, tensor);
  TRIREME_CHECK(found.rows == extents.rows && found.columns == extents.columns,
                "{}: {} is {}, expected {} rows of {}", op, name, to_string(tensor.shape),
                extents.rows, extents.columns);
}

void check_vector(const char* op, const char* name, const Tensor& tensor, DType dtype,
                  std::int64_t size) {
  check_present(op, name, tensor, dtype);
  TRIREME_CHECK(tensor.size() == size, "{}: {} is {}, expected {} elements", op, name,
                to_string(tensor.shape), size);
}

void check_shape(const char* op, const char* name, const Tensor& tensor, DType dtype,
                 const Shape& shape) {
  check_present(op, name, tensor, dtype);
  TRIREME_CHECK(tensor.shape == shape, "{}: {} is {}, expected {}", op, name,
                to_string(tensor.shape), to_string(shape));
}

}  // namespace trireme::kernels
