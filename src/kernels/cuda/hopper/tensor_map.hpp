// Descriptions of tensors for bulk copies.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "core/tensor.hpp"

namespace trireme::kernels::cuda {

/// One axis of a tensor as bulk copies see it: so many elements, `stride` elements apart, of which
/// a copy takes `box`; what it takes beyond the end reads as zeros and is not written.
struct MapAxis {
  std::int64_t size = 1;
  std::int64_t stride = 1;
  int box = 1;
};

/// The map of a tensor of 16-bit type `dtype` at `data`, aligned to 16 bytes. Axis 0 has stride 1,
/// the others' strides are multiples of 8; a box lies in shared memory as a panel (layouts.hpp) or
/// half of one, so axis 0 has a box of kPanelColumns or kHalfPanelColumns. The map is passed to
/// kernels by value, as __grid_constant__.
template <std::size_t kAxes>
CUtensorMap make_tensor_map(DType dtype, void* data, const std::array<MapAxis, kAxes>& axes);

}  // namespace trireme::kernels::cuda
