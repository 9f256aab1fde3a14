#include "kernels/cuda/gemm/forms.hpp"

namespace trireme::kernels::cuda {
namespace {

// cuBLASLt wants the rows of an epilogue's other matrix to be a multiple of this long, and its
// kernels for tensor cores those of all matrices.
constexpr std::int64_t kRowElements = 8;

bool whole_rows(const Tensor& tensor) {
  return tensor.size() > 0 && tensor.shape[tensor.shape.rank() - 1] % kRowElements == 0;
}

}  // namespace

bool fusable(const Fused& fused) {
  const Gemm& gemm = fused.gemm;
  for (const Tensor* tensor : {&gemm.a, &gemm.b, &gemm.c, &gemm.bias, &fused.aux})
    if (!aligned16(tensor->data)) return false;
  return gemm.a.dtype != DType::f32 && whole_rows(gemm.c) && whole_rows(fused.aux);
}

}  // namespace trireme::kernels::cuda
