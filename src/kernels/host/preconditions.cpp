#include "kernels/preconditions.hpp"

#include "kernels/linear.hpp"

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

namespace {

/// What conversions of x to FP8 share; returns the type of their results.
DType check_results(const char* op, const Tensor& x, const Tensor& out, const Tensor& transposed) {
  TRIREME_CHECK(out || transposed, "{}: neither out nor transposed is given", op);
  const DType dtype = out ? out.dtype : transposed.dtype;
  TRIREME_CHECK(is_fp8(dtype), "{}: out is {}, no FP8 type", op, name_of(dtype));
  TRIREME_CHECK(accumulation_type(x.dtype) == DType::f32 && !is_fp8(x.dtype), "{}: x is {}", op,
                name_of(x.dtype));
  return dtype;
}

}  // namespace

DType check_quantize(const Quantize& args) {
  const char* op = "quantize";
  const DType dtype = check_results(op, args.x, args.out, args.transposed);
  const Extents x = extents_of(op, "x", args.x);
  check_vector(op, "amax", args.amax, DType::f32, 1);
  check_vector(op, "scale", args.scale, DType::f32, 1);
  if (args.out) check_matrix(op, "out", args.out, dtype, x);
  if (args.transposed) check_matrix(op, "transposed", args.transposed, dtype, {x.columns, x.rows});
  return dtype;
}

DType check_quantize_blocks(const QuantizeBlocks& args) {
  const char* op = "quantize_blocks";
  const DType dtype = check_results(op, args.x, args.out, args.transposed);
  const Extents x = extents_of(op, "x", args.x);
  TRIREME_CHECK(x.rows % 16 == 0 && x.columns % 16 == 0, "{}: x is {}, not multiples of 16", op,
                to_string(args.x.shape));
  TRIREME_CHECK(!args.squares || !args.gelu, "{}: no GELU of weights", op);
  const auto check = [&](const char* name, const Tensor& out, const Tensor& scales,
                         const Extents& extents) {
    if (!out) return;
    check_matrix(op, name, out, dtype, extents);
    check_vector(op, name, scales, DType::f32,
                 scale_layout(args.blocks(), extents.rows, extents.columns).count);
  };
  check("out", args.out, args.out_scales, x);
  check("transposed", args.transposed, args.transposed_scales, {x.columns, x.rows});
  return dtype;
}

void check_fp8_gemm(const Gemm& args) {
  const char* op = "gemm";
  const Extents a = extents_of(op, "a", args.a), b = extents_of(op, "b", args.b);
  TRIREME_CHECK(is_fp8(args.a.dtype) && is_fp8(args.b.dtype), "{}: {} times {}", op,
                name_of(args.a.dtype), name_of(args.b.dtype));
  TRIREME_CHECK(args.a.dtype == DType::float8_e4m3 || args.b.dtype == DType::float8_e4m3,
                "{}: one operand of FP8 must be E4M3", op);
  TRIREME_CHECK(!args.transpose_a && args.transpose_b,
                "{}: FP8 operands are a [m, k] and b [n, k], transposed", op);
  TRIREME_CHECK(fits_fp8(a.rows, b.rows, a.columns), "{}: {} x {} x {} in FP8: not multiples of 16",
                op, a.rows, b.rows, a.columns);
  TRIREME_CHECK((args.blocks_a == ScaleBlocks::tensor) == (args.blocks_b == ScaleBlocks::tensor) &&
                    !(args.blocks_a == ScaleBlocks::squares && args.blocks_b == args.blocks_a),
                "{}: one scale in FP8 times a scale for each block, or squares times squares", op);
  TRIREME_CHECK(args.a.scale && args.b.scale, "{}: an FP8 operand has no scale", op);
  TRIREME_CHECK(accumulation_type(args.c.dtype) == DType::f32 && !is_fp8(args.c.dtype),
                "{}: c is {}", op, name_of(args.c.dtype));
  check_matrix(op, "a", args.a, args.a.dtype, a);
  check_matrix(op, "b", args.b, args.b.dtype, {b.rows, a.columns});
  check_matrix(op, "c", args.c, args.c.dtype, {a.rows, b.rows});
  if (!args.bias) return;
  check_vector(op, "bias", args.bias, args.c.dtype, b.rows);
  TRIREME_CHECK(args.beta == 0.0, "{}: a bias is added with beta 0 only", op);
}

}  // namespace trireme::kernels
