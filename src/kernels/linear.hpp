// Linear layers: GEMMs, alone or with an activation function or the gradient of a bias fused to
// them; their operands in FP8; and activation functions.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

// ---- FP8 operands of GEMMs: largest magnitudes, and conversions with one scale for a whole tensor
// ("current scaling") or one for each block of 128 elements or 128 x 128.
// Sources: Micikevicius et al., "FP8 formats for deep learning" (2022), section 3; of blocks:
// DeepSeek-AI, "DeepSeek-V3 technical report" (2024), section 3.3.2.

/// Writes the largest magnitude of x's elements to amax [1] fp32; NaN where one of them is NaN. x
/// of fp32 or a 16-bit type.
///
/// Operations whose comment says that they raise the amax of a tensor save this pass: they replace
/// *tensor.amax, where there is a place for it, by the larger of it and the largest magnitude of
/// what they write, as it is rounded.
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
/// Raises x.amax, if there is a place for it.
void raise_amax(const Tensor& x);
void quantize(const Quantize& args);
void quantize_blocks(const QuantizeBlocks& args);
}  // namespace host

namespace cuda {
void amax(const Amax& args, const Context& context);
/// Raises x.amax, if there is a place for it, in a pass over x.
void raise_amax(const Tensor& x, const Context& context);
void quantize(const Quantize& args, const Context& context);
void quantize_blocks(const QuantizeBlocks& args, const Context& context);
}  // namespace cuda

// ---- activation functions

/// gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); gelu(x) = x/2 (1 + erf(x /
/// sqrt(2))); tanh(x); silu(x) = x / (1 + exp(-x)). Source: Hendrycks, Gimpel, "Gaussian error
/// linear units" (2016), section 2.
enum class Activation { gelu_tanh, gelu, tanh, silu };

/// Writes out = f(x). x, out [T, n]; x is kept for the backward pass.
struct GeluForward {
  Tensor x;
  Tensor out;
  Activation function = Activation::gelu_tanh;
};

/// Writes dx = dout * f'(x) and adds its column sums to dbias, the gradient of the bias that
/// became part of x. dx may be dout or x. dout, x, dx [T, n]; dbias [n] of the accumulation type.
/// Raises dx's amax.
struct GeluBackward {
  Tensor dout;
  Tensor x;
  Tensor dx;
  Tensor dbias;
  Activation function = Activation::gelu_tanh;
};

/// Writes out = f(gate) * up: SwiGLU with f = silu, GeGLU with gelu_tanh or gelu. x [T, 2 n]: the n
/// columns of gate, then those of up; it is kept for the backward pass. out [T, n], whose amax is
/// raised. Source: Shazeer, "GLU variants improve transformer" (2020).
struct GatedForward {
  Tensor x;
  Tensor out;
  Activation function = Activation::silu;
};

/// Writes dx = (dout * up * f'(gate), dout * f(gate)). dx may be x. x, dx [T, 2 n], dout [T, n].
/// Raises dx's amax.
struct GatedBackward {
  Tensor dout;
  Tensor x;
  Tensor dx;
  Activation function = Activation::silu;
};

namespace host {
void gelu_forward(const GeluForward& args);
void gelu_backward(const GeluBackward& args);
void gated_forward(const GatedForward& args);
void gated_backward(const GatedBackward& args);
}  // namespace host

namespace cuda {
void gelu_forward(const GeluForward& args, const Context& context);
void gelu_backward(const GeluBackward& args, const Context& context);
void gated_forward(const GatedForward& args, const Context& context);
void gated_backward(const GatedBackward& args, const Context& context);
}  // namespace cuda

// ---- linear layers

/// C = op(A) op(B) + beta C + bias, with op(X) = X or its transpose. Writes C when beta is 0 (C is
/// not read), adds when 1. op(A) [m, k], op(B) [k, n], C [m, n]; `bias` [n], when given, is added
/// to every row, with beta 0. A and B of one type, C and bias of that type or, for weight
/// gradients, C of its accumulation type; accumulates in the accumulation type. Tensors of more
/// than two axes fold their leading axes into rows.
///
/// Of FP8, A and B may have different types, but not both E5M2; both have a scale; op(A) = A [m, k]
/// and op(B) = B^T, B [n, k]; m, n and k are multiples of 16 (fits_fp8); C and bias have fp32 or a
/// 16-bit type. C = scale_a scale_b A B^T + beta C + bias; where A and B have scales for blocks,
/// each element is times its block's.
struct Gemm {
  Tensor a;
  Tensor b;
  Tensor c;
  bool transpose_a = false;
  bool transpose_b = false;
  double beta = 0.0;
  Tensor bias;
  /// Of FP8: the GPU may keep partial sums in its tensor cores, with about 14 bits.
  bool fast_accumulation = false;
  /// Of FP8: what the scales are for. Both `tensor` or neither; not both `squares`.
  ScaleBlocks blocks_a = ScaleBlocks::tensor;
  ScaleBlocks blocks_b = ScaleBlocks::tensor;
  PartArrivals arrivals = {};  ///< on a GPU, where op(A) is A: parts of A's rows still to come
};

/// How a GEMM on a GPU gets its kernel.
enum class GemmChoice {
  timed,      ///< the fastest of cuBLASLt's candidates and the own kernels, timed on this GPU: pays
              ///< when a GEMM of one shape runs thousands of times
  heuristic,  ///< untimed: a known choice, own kernels for a large C with bias, or cuBLASLt's first
};

/// Where a GPU computes the GELU, SwiGLU or its gradient or the bias gradient of a GEMM: in its
/// epilogue or by a second kernel. With GemmChoice::heuristic the latter two mean cuBLASLt's first
/// alone.
enum class Fusion {
  timed,   ///< in the GEMM's kernel if that is faster, timed on this GPU or known to the build
  always,  ///< in the GEMM's kernel wherever there is one; to compare with
  never,   ///< in a separate kernel; to compare with
};

/// Whether FP8 GEMMs exist for these extents, on all backends: cuBLASLt's rule.
constexpr bool fits_fp8(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m > 0 && n > 0 && k > 0 && m % 16 == 0 && n % 16 == 0 && k % 16 == 0;
}

/// Throws InternalError unless the tensors of an FP8 GEMM are as Gemm says.
void check_fp8_gemm(const Gemm& args);

namespace host {
void gemm(const Gemm& args);
}

/// FC1 of an MLP and its GELU, `function`: writes fc1_out = x weight^T + bias, which the backward
/// pass reads, and gelu_out = gelu(fc1_out), as Gemm and GeluForward do; a backend may apply the
/// GELU before it rounds fc1_out. x [T, k], weight [n, k], bias [n], fc1_out and gelu_out [T, n],
/// all of one type.
struct LinearGelu {
  Tensor x;
  Tensor weight;
  Tensor bias;
  Tensor fc1_out;
  Tensor gelu_out;
  Activation function = Activation::gelu_tanh;
  PartArrivals arrivals = {};  ///< of x; see Gemm
};

/// Backward of FC2 and of the GELU before it: with y = gelu(fc1_out) weight^T, writes
/// dfc1_out = (dy weight) * gelu'(fc1_out) and adds its column sums to dbias, the gradient of the
/// bias in fc1_out, as Gemm and GeluBackward do. dfc1_out may not be fc1_out. dy [T, k], weight [k,
/// n], fc1_out and dfc1_out [T, n], all of one type; dbias [n] of the accumulation type.
struct LinearGeluGradient {
  Tensor dy;
  Tensor weight;
  Tensor fc1_out;
  Tensor dfc1_out;
  Tensor dbias;
  Activation function = Activation::gelu_tanh;
  PartArrivals arrivals = {};  ///< of dy; see Gemm
};

/// The first linear layer of a gated MLP and its gate: writes fc1_out = x weight^T, which the
/// backward pass reads, and gated_out = f(gate) * up, gate and up the halves of fc1_out's columns,
/// as Gemm and GatedForward do. x [T, k], weight [2 n, k]: the n rows of gate, then those of up;
/// fc1_out [T, 2 n], gated_out [T, n], all of one type.
struct LinearGated {
  Tensor x;
  Tensor weight;
  Tensor fc1_out;
  Tensor gated_out;
  Activation function = Activation::silu;
  PartArrivals arrivals = {};  ///< of x; see Gemm
};

/// Backward of the second linear layer of a gated MLP and of its gate: with y = (f(gate) * up)
/// weight^T, gate and up the halves of fc1_out's columns, writes dfc1_out = (dout * up * f'(gate),
/// dout * f(gate)) of dout = dy weight, as Gemm and GatedBackward do; a backend may or may not
/// round dout, and write it to `dout`. No two of the tensors are the same. dy [T, k], weight [k,
/// n], dout [T, n], fc1_out and dfc1_out [T, 2 n], all of one type.
struct LinearGatedGradient {
  Tensor dy;
  Tensor weight;
  Tensor fc1_out;
  Tensor dout;
  Tensor dfc1_out;
  Activation function = Activation::silu;
  PartArrivals arrivals = {};  ///< of dy; see Gemm
};

namespace host {
void linear_gelu(const LinearGelu& args);
void linear_gelu_gradient(const LinearGeluGradient& args);
void linear_gated(const LinearGated& args);
void linear_gated_gradient(const LinearGatedGradient& args);
}  // namespace host

/// The gradients of weight and bias of y = x weight^T + bias: adds dy^T x to dweight and the column
/// sums of dy to dbias, as Gemm and BiasGradient do. x [T, in], dy [T, out], of one type; dbias
/// [out] of the accumulation type, dweight [out, in] of that or of the same type, as Gemm.
struct LinearWeightGradient {
  Tensor x;
  Tensor dy;
  Tensor dweight;
  Tensor dbias;
};

namespace host {
void linear_weight_gradient(const LinearWeightGradient& args);
}

/// Adds the column sums of dout to dbias. dout [T, n]; dbias [n] of the accumulation type. Sums in
/// double on the host; the order of the sum is fixed. Raises dout's amax: it reads all of it.
struct BiasGradient {
  Tensor dout;
  Tensor dbias;
};

namespace host {
void bias_gradient(const BiasGradient& args);
}
namespace cuda {
void bias_gradient(const BiasGradient& args, const Context& context);
}

}  // namespace trireme::kernels
