// FP8 operands of GEMMs: largest magnitudes, and conversions with one scale for a whole tensor
// ("current scaling") or one for each block of 128 elements or 128 x 128.
// Sources: Micikevicius et al., "FP8 formats for deep learning" (2022), section 3; of blocks:
// DeepSeek-AI, "DeepSeek-V3 technical report" (2024), section 3.3.2.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

/// Writes the largest magnitude of x's elements to amax [1] fp32; NaN where one of them is NaN. x
/// of fp32 or a 16-bit type.
struct Amax {
  Tensor x;
  Tensor amax;
  bool gelu = false;  ///< of gelu_tanh(x), computed in fp32, in place of x
};

/// The factor by which elements are multiplied before they are rounded to FP8: max / amax, so that
/// the largest becomes the largest number of the type; 1 for a tensor of zeros. At most 2^126, so
/// that its inverse is a normal number. The factor of a NaN is NaN, that of infinity 0.
TRIREME_HOST_DEVICE inline float fp8_factor(float amax, float max) {
  const float factor = amax == 0.0f ? 1.0f : max / amax;
  return factor > 0x1p126f ? 0x1p126f : factor;
}

/// Writes x [T, n], of fp32 or a 16-bit type, times fp8_factor(amax), rounded to the FP8 type of
/// `out` [T, n] and `transposed` [n, T], of which one may be missing: to nearest, ties to even,
/// saturating. Writes the inverse of the factor to scale [1] fp32, which is the tensors' scale:
/// Tensor::scale points there. amax [1] fp32 is read only.
struct Quantize {
  Tensor x;
  Tensor amax;
  Tensor scale;
  Tensor out;
  Tensor transposed;
  bool gelu = false;  ///< as Amax
};

/// Throws InternalError unless the tensors are as Quantize says; returns their FP8 type.
DType check_quantize(const Quantize& args);

/// Which elements of an FP8 operand [rows, k], contiguous along k, share a scale, and the order of
/// the scales, which is cuBLASLt's. Blocks at the ends of rows and columns may be smaller.
enum class ScaleBlocks {
  tensor,   ///< all elements: one scale
  vectors,  ///< 128 of a row: scales [ceil(k / 128), rows rounded up to a multiple of 4]
  squares,  ///< 128 x 128: scales [ceil(rows / 128), ceil(k / 128) rounded up to a multiple of 4]
};

inline constexpr std::int64_t kScaleBlock = 128;

/// Where the scale of element (row, i) of an operand lies: at
/// (row / block_rows) row_step + (i / kScaleBlock) k_step.
struct ScaleLayout {
  std::int64_t block_rows = 1, row_step = 0, k_step = 0;
  std::int64_t count = 1;  ///< of scales, with those that are padding

  TRIREME_HOST_DEVICE constexpr std::int64_t index(std::int64_t row, std::int64_t i) const {
    return row / block_rows * row_step + i / kScaleBlock * k_step;
  }
};

constexpr ScaleLayout scale_layout(ScaleBlocks blocks, std::int64_t rows, std::int64_t k) {
  const std::int64_t along_k = (k + kScaleBlock - 1) / kScaleBlock;
  if (blocks == ScaleBlocks::vectors) {
    const std::int64_t padded = (rows + 3) / 4 * 4;
    return {.block_rows = 1, .row_step = 1, .k_step = padded, .count = along_k * padded};
  }
  if (blocks == ScaleBlocks::squares) {
    const std::int64_t padded = (along_k + 3) / 4 * 4;
    const std::int64_t down = (rows + kScaleBlock - 1) / kScaleBlock;
    return {.block_rows = kScaleBlock, .row_step = padded, .k_step = 1, .count = down * padded};
  }
  return {};
}

/// Writes x [T, n], of fp32 or a 16-bit type, as FP8 to `out` [T, n] and `transposed` [n, T], of
/// which one may be missing: each block of a result times fp8_factor() of the block's largest
/// magnitude, rounded as Quantize does. The inverse of the factor is the block's scale, in
/// out_scales and transposed_scales, fp32 of scale_layout(): vectors, so that the two results have
/// different codes, or `squares`. T and n are multiples of 16; scales that are padding are not
/// written.
struct QuantizeBlocks {
  Tensor x;
  Tensor out;
  Tensor out_scales;
  Tensor transposed;
  Tensor transposed_scales;
  bool squares = false;
  bool gelu = false;  ///< as Amax; not with squares

  ScaleBlocks blocks() const { return squares ? ScaleBlocks::squares : ScaleBlocks::vectors; }
};

/// Throws InternalError unless the tensors are as QuantizeBlocks says; returns their FP8 type.
DType check_quantize_blocks(const QuantizeBlocks& args);

namespace host {
void amax(const Amax& args);
void quantize(const Quantize& args);
void quantize_blocks(const QuantizeBlocks& args);
}  // namespace host

namespace cuda {
void amax(const Amax& args, const Context& context);
void quantize(const Quantize& args, const Context& context);
void quantize_blocks(const QuantizeBlocks& args, const Context& context);
}  // namespace cuda

}  // namespace trireme::kernels
