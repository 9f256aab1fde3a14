#include "kernels/linear_gelu.hpp"

#include "kernels/bias.hpp"
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

}  // namespace trireme::kernels::cuda
