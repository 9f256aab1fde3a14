// Rows of FP8: conversions and GEMMs.
#include "bench/kernel_rows.hpp"

namespace trireme::bench {

/// The conversions of an MLP's activations [T, 4 h], and its first GEMM's three forms;
/// with `blocks` also those with a scale for each block.
void Rows::fp8(bool blocks) {
  using enum DType;
  using kernels::ScaleBlocks;
  const std::int64_t T = model_.tokens(), h = model_.hidden;
  const double elements = static_cast<double>(4 * T * h);
  const auto scales = [this](Shape shape, ScaleBlocks of) {
    return meter_.random({kernels::scale_layout(of, shape[0], shape[1]).count}, f32);
  };
  const auto operand = [=, this](Shape shape, DType dtype, ScaleBlocks of) {
    Tensor tensor = meter_.random(shape, dtype);
    tensor.scale = scales(shape, of).as<float>();
    return tensor;
  };
  meter_.stream(name("amax"), elements * size_of(dtype_), [=, this]() -> Call {
    const kernels::Amax args{.x = meter_.random({T, 4 * h}, dtype_),
                             .amax = meter_.zeros({1}, f32)};
    return call(args);
  });
  meter_.stream(name("fp8 cast, both layouts"), elements * (size_of(dtype_) + 2),
                [=, this]() -> Call {
                  const kernels::Quantize args{.x = meter_.random({T, 4 * h}, dtype_),
                                               .amax = meter_.random({1}, f32),
                                               .scale = meter_.zeros({1}, f32),
                                               .out = meter_.zeros({T, 4 * h}, float8_e4m3),
                                               .transposed = meter_.zeros({4 * h, T}, float8_e4m3)};
                  return call(args);
                });
  const double flops = 2.0 * elements * static_cast<double>(h);
  const auto gemm = [&](const std::string& form, Shape a, DType a_type, Shape b, DType result,
                        double beta, ScaleBlocks of_a, ScaleBlocks of_b) {
    meter_.gemm(name(form), flops, [=, this]() -> Call {
      const kernels::Gemm args{
          .a = operand(a, a_type, of_a),
          .b = operand(b, float8_e4m3, of_b),
          .c = meter_.zeros({a[0], b[0]}, result),
          .transpose_b = true,
          .beta = beta,
          .fast_accumulation = a_type == float8_e4m3 && of_a == ScaleBlocks::tensor,
          .blocks_a = of_a,
          .blocks_b = of_b};
      return call(args);
    });
  };
  const auto gemms = [&](const std::string& head, ScaleBlocks operands, ScaleBlocks weights) {
    gemm(head + ", forward", {T, h}, float8_e4m3, {4 * h, h}, dtype_, 0.0, operands, weights);
    gemm(head + ", input gradient", {T, 4 * h}, float8_e5m2, {h, 4 * h}, dtype_, 0.0, operands,
         weights);
    gemm(head + ", weight gradient", {4 * h, T}, float8_e5m2, {h, T}, f32, 1.0, operands, operands);
  };
  gemms("fp8 gemm", ScaleBlocks::tensor, ScaleBlocks::tensor);
  if (!blocks) return;
  meter_.stream(name("fp8 cast of blocks, both layouts"), elements * (size_of(dtype_) + 2),
                [=, this]() -> Call {
                  const Shape shape{T, 4 * h}, turned{4 * h, T};
                  const kernels::QuantizeBlocks args{
                      .x = meter_.random(shape, dtype_),
                      .out = meter_.zeros(shape, float8_e4m3),
                      .out_scales = scales(shape, ScaleBlocks::vectors),
                      .transposed = meter_.zeros(turned, float8_e4m3),
                      .transposed_scales = scales(turned, ScaleBlocks::vectors)};
                  return call(args);
                });
  gemms("fp8 gemm of blocks", ScaleBlocks::vectors, ScaleBlocks::squares);
}

}  // namespace trireme::bench
