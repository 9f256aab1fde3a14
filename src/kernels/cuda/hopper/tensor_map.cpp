#include "kernels/cuda/hopper/tensor_map.hpp"

#include <fmt/format.h>

#include "core/cuda/check.hpp"
#include "kernels/cuda/hopper/layouts.hpp"

namespace trireme::kernels::cuda {
namespace {

decltype(&cuTensorMapEncodeTiled) encode_function() {
  static const auto function = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(
      trireme::cuda::driver_function("cuTensorMapEncodeTiled"));
  return function;
}

CUtensorMapDataType element_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::f64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
  throw_unknown_dtype(dtype);
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
  const CUtensorMapSwizzle swizzle =
      axes[0].box == kHalfPanelColumns ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  // The stride of axis 0 is not passed.
  const CUresult result = encode_function()(
      &map, element_type(dtype), static_cast<cuuint32_t>(kAxes), data, sizes.data(),
      strides.data() + 1, boxes.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  trireme::cuda::check_driver(
      result, fmt::format("describing a tensor of {} x {} x ... elements, strides {}, ...",
                          axes[0].size, axes[1].size, axes[1].stride));
  return map;
}

template CUtensorMap make_tensor_map(DType, void*, const std::array<MapAxis, 2>&);
template CUtensorMap make_tensor_map(DType, void*, const std::array<MapAxis, 3>&);
template CUtensorMap make_tensor_map(DType, void*, const std::array<MapAxis, 4>&);

}  // namespace trireme::kernels::cuda
