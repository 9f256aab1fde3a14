#include "kernels/cuda/hopper/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include "core/cuda/check.hpp"
#include "kernels/cuda/hopper/layouts.hpp"

namespace trireme::kernels::cuda {
namespace {

// The driver's function, asked for when it is first needed: programs that link the driver would
// not start on machines without it.
decltype(&cuTensorMapEncodeTiled) encode_function() {
  static const auto function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    TRIREME_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                                  cudaEnableDefault, &found));
#else
    TRIREME_CUDA(
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &found));
#endif
    TRIREME_CHECK(found == cudaDriverEntryPointSuccess,
                  "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
  }();
  return function;
}

}  // namespace

template <std::size_t kAxes>
CUtensorMap make_tensor_map(DType dtype, void* data, const std::array<MapAxis, kAxes>& axes) {
  std::array<cuuint64_t, kAxes> sizes, strides;
  std::array<cuuint32_t, kAxes> boxes, steps;
  for (std::size_t i = 0; i < kAxes; ++i) {
    sizes[i] = static_cast<cuuint64_t>(axes[i].size);
    strides[i] = static_cast<cuuint64_t>(axes[i].stride) * size_of(dtype);
    boxes[i] = static_cast<cuuint32_t>(axes[i].box);
    steps[i] = 1;
  }
  CUtensorMap map;
  // The stride of axis 0 is not passed.
  const CUresult result = encode_function()(
      &map,
      dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      static_cast<cuuint32_t>(kAxes), data, sizes.data(), strides.data() + 1, boxes.data(),
      steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TRIREME_CHECK(result == CUDA_SUCCESS,
                "the driver refused to describe a tensor of {} x {} x ... elements, strides {}, "
                "...: error {}",
                axes[0].size, axes[1].size, axes[1].stride, static_cast<int>(result));
  return map;
}

template CUtensorMap make_tensor_map(DType, void*, const std::array<MapAxis, 3>&);
template CUtensorMap make_tensor_map(DType, void*, const std::array<MapAxis, 4>&);

}  // namespace trireme::kernels::cuda
