#include "kernels/cuda/gemm/forms.hpp"

#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/gelu.hpp"
#include "kernels/linear.hpp"

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
  for (const Tensor* tensor : {&gemm.a, &gemm.b, &gemm.c, &gemm.bias, &fused.aux, &fused.out})
    if (!aligned16(tensor->data)) return false;
  return gemm.a.dtype != DType::f32 && whole_rows(gemm.c) && whole_rows(fused.aux);
}

namespace {

/// Expects `fc1_out` and `out` to be two matrices like C, a GELU, and room for the GEMM.
void check_matrices(const char* op, DType dtype, Activation function, const Tensor& fc1_out,
                    const char* name, const Tensor& out, const Context& context) {
  TRIREME_CHECK(function != Activation::tanh, "{}: tanh is no GELU", op);
  const Extents extents = extents_of(op, "fc1_out", fc1_out);
  check_matrix(op, "fc1_out", fc1_out, dtype, extents);
  check_matrix(op, name, out, dtype, extents);
  TRIREME_CHECK(out.data != fc1_out.data || fc1_out.size() == 0, "{}: {} may not be fc1_out", op,
                name);
  check_workspace(op, context, kGemmWorkspace);
}

bool exact(Activation function) { return function == Activation::gelu; }

struct Layer {
  using Args = LinearGelu;

  static void check(const Args& args, const Context& context) {
    check_matrices("linear_gelu", args.x.dtype, args.function, args.fc1_out, "gelu_out",
                   args.gelu_out, context);
    check_vector("linear_gelu", "bias", args.bias, args.x.dtype,
                 args.fc1_out.shape[args.fc1_out.shape.rank() - 1]);
  }

  static Fused fused(const Args& args, const Context&) {
    return {.gemm = {.a = args.x,
                     .b = args.weight,
                     .c = args.gelu_out,
                     .transpose_b = true,
                     .bias = args.bias},
            .epilogue = exact(args.function) ? Epilogue::exact_gelu : Epilogue::gelu,
            .aux = args.fc1_out};
  }
  static void after_fused(const Args&, const Context&) {}

  static Gemm problem(const Args& args) {
    return {
        .a = args.x, .b = args.weight, .c = args.fc1_out, .transpose_b = true, .bias = args.bias};
  }
  static void after_gemm(const Args& args, const Context& context) {
    gelu_forward({.x = args.fc1_out, .out = args.gelu_out, .function = args.function}, context);
  }

  static std::optional<Args> trial(const Args& args, StandIns& stand_ins) {
    return Args{.x = stand_ins.instead_of(args.x),
                .weight = stand_ins.instead_of(args.weight),
                .bias = stand_ins.instead_of(args.bias),
                .fc1_out = stand_ins.instead_of(args.fc1_out),
                .gelu_out = stand_ins.instead_of(args.gelu_out),
                .function = args.function};
  }
};

struct Gradient {
  using Args = LinearGeluGradient;

  static void check(const Args& args, const Context& context) {
    check_matrices("linear_gelu_gradient", args.dy.dtype, args.function, args.fc1_out, "dfc1_out",
                   args.dfc1_out, context);
    check_vector("linear_gelu_gradient", "dbias", args.dbias, DType::f32,
                 args.fc1_out.shape[args.fc1_out.shape.rank() - 1]);
  }

  static Fused fused(const Args& args, const Context&) {
    return {
        .gemm = {.a = args.dy, .b = args.weight, .c = args.dfc1_out},
        .epilogue = exact(args.function) ? Epilogue::exact_gelu_gradient : Epilogue::gelu_gradient,
        .aux = args.fc1_out,
        .sums = args.dbias};
  }
  static void after_fused(const Args& args, const Context& context) {
    bias_gradient({.dout = args.dfc1_out, .dbias = args.dbias}, context);
  }

  static Gemm problem(const Args& args) {
    return {.a = args.dy, .b = args.weight, .c = args.dfc1_out};
  }
  static void after_gemm(const Args& args, const Context& context) {
    gelu_backward({.dout = args.dfc1_out,
                   .x = args.fc1_out,
                   .dx = args.dfc1_out,
                   .dbias = args.dbias,
                   .function = args.function},
                  context);
  }

  static std::optional<Args> trial(const Args& args, StandIns& stand_ins) {
    const Args trial{.dy = stand_ins.instead_of(args.dy),
                     .weight = stand_ins.instead_of(args.weight),
                     .fc1_out = stand_ins.instead_of(args.fc1_out),
                     .dfc1_out = stand_ins.instead_of(args.dfc1_out),
                     .dbias = stand_ins.instead_of(args.dbias),
                     .function = args.function};
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

/// cuBLASLt has no such epilogue: the fused form is an own kernel's, or there is none.
struct GatedGradient {
  using Args = LinearGatedGradient;

  static void check(const Args& args, const Context& context) {
    const char* op = "linear_gated_gradient";
    const Extents extents = extents_of(op, "dout", args.dout);
    const Extents twice{extents.rows, 2 * extents.columns};
    check_matrix(op, "dout", args.dout, args.dy.dtype, extents);
    check_matrix(op, "fc1_out", args.fc1_out, args.dy.dtype, twice);
    check_matrix(op, "dfc1_out", args.dfc1_out, args.dy.dtype, twice);
    check_workspace(op, context, kGemmWorkspace);
  }

  static Fused fused(const Args& args, const Context&) {
    return {.gemm = problem(args),
            .epilogue = Epilogue::gated_gradient,
            .aux = args.fc1_out,
            .out = args.dfc1_out};
  }
  static void after_fused(const Args&, const Context&) {}

  static Gemm problem(const Args& args) { return {.a = args.dy, .b = args.weight, .c = args.dout}; }
  static void after_gemm(const Args& args, const Context& context) {
    gated_backward(
        {.dout = args.dout, .x = args.fc1_out, .dx = args.dfc1_out, .function = args.function},
        context);
  }

  static std::optional<Args> trial(const Args& args, StandIns& stand_ins) {
    return Args{.dy = stand_ins.instead_of(args.dy),
                .weight = stand_ins.instead_of(args.weight),
                .fc1_out = stand_ins.instead_of(args.fc1_out),
                .dout = stand_ins.instead_of(args.dout),
                .dfc1_out = stand_ins.instead_of(args.dfc1_out),
                .function = args.function};
  }
};

}  // namespace

void GemmRunner::linear_gated_gradient(const LinearGatedGradient& args, const Context& context) {
  Forms<GatedGradient> forms(*this, *chooser_, context);
  args.function == Activation::silu ? forms.run(args) : forms.run_separately(args);
}

namespace {

/// The epilogue overwrites the sums that it should add to: it gets others, after cuBLASLt's part of
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
    return {.gemm = problem(args),
            .epilogue = Epilogue::bias_gradient,
            .aux = {context.workspace + kGemmWorkspace, DType::f32, {args.dbias.size()}},
            .sums = args.dbias};
  }
  static void after_fused(const Args& args, const Context& context) {
    const Tensor sums = fused(args, context).aux;
    add_partial_columns(sums.as<float>(), 1,
                        {.width = sums.size(), .vectors = {args.dbias.as<float>()}}, context);
  }

  static Gemm problem(const Args& args) {
    return {.a = args.dy, .b = args.x, .c = args.dweight, .transpose_a = true, .beta = 1.0};
  }
  static void after_gemm(const Args& args, const Context& context) {
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
  if (args.dy.size() == 0) return;         // cuBLASLt knows no GEMMs of no terms
  if (args.dweight.dtype != DType::f32) {  // the epilogue's sums would have the GEMM's type
    gemm(WeightGradient::problem(args), context);
    return WeightGradient::after_gemm(args, context);
  }
  Forms<WeightGradient>(*this, *chooser_, context).run(args);
}

}  // namespace trireme::kernels::cuda
