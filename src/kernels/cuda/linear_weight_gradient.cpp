#include "kernels/linear_weight_gradient.hpp"

#include "kernels/bias.hpp"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/gemm/forms.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
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
