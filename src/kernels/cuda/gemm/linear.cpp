#include "kernels/linear.hpp"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/gemm/forms.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/gelu.hpp"

namespace trireme::kernels::cuda {
namespace {

/// Expects `up` and `out` to be two matrices like C, and room for the product.
void check_matrices(const char* op, DType dtype, const Tensor& up, const char* name,
                    const Tensor& out, const Context& context) {
  const Extents extents = extents_of(op, "up", up);
  check_matrix(op, "up", up, dtype, extents);
  check_matrix(op, name, out, dtype, extents);
  TRIREME_CHECK(out.data != up.data || up.size() == 0, "{}: {} may not be up", op, name);
  check_workspace(op, context, kGemmWorkspace);
}

struct Layer {
  using Args = LinearGelu;

  static void check(const Args& args, const Context& context) {
    check_matrices("linear_gelu", args.x.dtype, args.up, "activated", args.activated, context);
    check_vector("linear_gelu", "bias", args.bias, args.x.dtype,
                 args.up.shape[args.up.shape.rank() - 1]);
  }

  static Fused fused(const Args& args, const Context&) {
    return {.gemm = {.a = args.x,
                     .b = args.weight,
                     .c = args.activated,
                     .transpose_b = true,
                     .bias = args.bias},
            .epilogue = Epilogue::gelu,
            .aux = args.up};
  }
  static void after_fused(const Args&, const Context&) {}

  static Gemm product(const Args& args) {
    return {.a = args.x, .b = args.weight, .c = args.up, .transpose_b = true, .bias = args.bias};
  }
  static void after_product(const Args& args, const Context& context) {
    gelu_forward({.x = args.up, .out = args.activated}, context);
  }

  static std::optional<Args> trial(const Args& args, StandIns& stand_ins) {
    return Args{.x = stand_ins.instead_of(args.x),
                .weight = stand_ins.instead_of(args.weight),
                .bias = stand_ins.instead_of(args.bias),
                .up = stand_ins.instead_of(args.up),
                .activated = stand_ins.instead_of(args.activated)};
  }
};

struct Gradient {
  using Args = LinearGeluGradient;

  static void check(const Args& args, const Context& context) {
    check_matrices("linear_gelu_gradient", args.dy.dtype, args.up, "dup", args.dup, context);
    check_vector("linear_gelu_gradient", "dbias", args.dbias, DType::f32,
                 args.up.shape[args.up.shape.rank() - 1]);
  }

  static Fused fused(const Args& args, const Context&) {
    return {.gemm = {.a = args.dy, .b = args.weight, .c = args.dup},
            .epilogue = Epilogue::gelu_gradient,
            .aux = args.up,
            .sums = args.dbias};
  }
  static void after_fused(const Args& args, const Context& context) {
    bias_gradient({.dout = args.dup, .dbias = args.dbias}, context);
  }

  static Gemm product(const Args& args) { return {.a = args.dy, .b = args.weight, .c = args.dup}; }
  static void after_product(const Args& args, const Context& context) {
    gelu_backward({.dout = args.dup, .x = args.up, .dx = args.dup, .dbias = args.dbias}, context);
  }

  static std::optional<Args> trial(const Args& args, StandIns& stand_ins) {
    const Args trial{.dy = stand_ins.instead_of(args.dy),
                     .weight = stand_ins.instead_of(args.weight),
                     .up = stand_ins.instead_of(args.up),
                     .dup = stand_ins.instead_of(args.dup),
                     .dbias = stand_ins.instead_of(args.dbias)};
    return trial.dbias.data == args.dbias.data ? std::nullopt : std::optional(trial);
  }
};

}  // namespace

void GemmRunner::linear_gelu(const LinearGelu& args, const Context& context) {
  Forms<Layer>(*this, *chooser_, context).run(args);
}

void GemmRunner::linear_gelu_gradient(const LinearGeluGradient& args, const Context& context) {
  Forms<Gradient>(*this, *chooser_, context).run(args);
}

namespace {

/// The epilogue overwrites the sums that it is to add to: it gets others, behind cuBLASLt's part of
/// the workspace.
struct WeightGradient {
  using Args = LinearWeightGradient;

  static void check(const Args& args, const Context& context) {
    const char* op = "linear_weight_gradient";
    const Extents dy = extents_of(op, "dy", args.dy), x = extents_of(op, "x", args.x);
    check_matrix(op, "dy", args.dy, args.x.dtype, {x.rows, dy.columns});
    check_matrix(op, "dweight", args.dweight, DType::f32, {dy.columns, x.columns});
    check_vector(op, "dbias", args.dbias, DType::f32, dy.columns);
    check_workspace(op, context, kGemmWorkspace + bias_gradient_workspace(dy.columns));
  }

  static Fused fused(const Args& args, const Context& context) {
    return {.gemm = product(args),
            .epilogue = Epilogue::bias_gradient,
            .aux = {context.workspace + kGemmWorkspace, DType::f32, {args.dbias.size()}},
            .sums = args.dbias};
  }
  static void after_fused(const Args& args, const Context& context) {
    const Tensor sums = fused(args, context).aux;
    add_partial_columns(sums.as<float>(), 1,
                        {.width = sums.size(), .vectors = {args.dbias.as<float>()}}, context);
  }

  static Gemm product(const Args& args) {
    return {.a = args.dy, .b = args.x, .c = args.dweight, .transpose_a = true, .beta = 1.0};
  }
  static void after_product(const Args& args, const Context& context) {
    bias_gradient({.dout = args.dy, .dbias = args.dbias}, context);
  }

  static std::optional<Args> trial(const Args& args, StandIns& stand_ins) {
    const Args trial{.x = stand_ins.instead_of(args.x),
                     .dy = stand_ins.instead_of(args.dy),
                     .dweight = stand_ins.instead_of(args.dweight),
                     .dbias = stand_ins.instead_of(args.dbias)};
    const bool apart =
        trial.dweight.data != args.dweight.data && trial.dbias.data != args.dbias.data;
    return apart ? std::optional(trial) : std::nullopt;
  }
};

}  // namespace

void GemmRunner::linear_weight_gradient(const LinearWeightGradient& args, const Context& context) {
  if (args.dy.size() == 0) return;         // cuBLASLt knows no products of no terms
  if (args.dweight.dtype != DType::f32) {  // the epilogue's sums would have the product's type
    gemm(WeightGradient::product(args), context);
    return WeightGradient::after_product(args, context);
  }
  Forms<WeightGradient>(*this, *chooser_, context).run(args);
}

}  // namespace trireme::kernels::cuda
