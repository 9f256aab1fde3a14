// Both operations have two forms: a product with the GELU as its epilogue, or a product and then a
// kernel for the GELU, bound by bytes. The first saves a trip to memory and back, but its product
// may be slower by more than that: it depends on shape, GPU and library, so both are timed.
#include "kernels/linear_gelu.hpp"

#include "kernels/bias.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/gemm/chooser.hpp"
#include "kernels/cuda/gemm/timing.hpp"
#include "kernels/cuda/preconditions.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/gelu.hpp"

namespace trireme::kernels::cuda {
namespace {

// So many candidates with an epilogue are timed at length at most, to keep the start of a run
// short.
constexpr std::size_t kMostFused = 5;
// cuBLASLt wants the rows of an epilogue's other matrix to be a multiple of this long.
constexpr std::int64_t kAuxElements = 8;

/// A product with an epilogue, and the epilogue's other matrix.
struct Fused {
  Gemm gemm;
  Epilogue epilogue;
  Tensor aux;
};

/// Whether cuBLASLt may have a kernel for it, and one that is worth asking for.
bool fusable(const Fused& fused) {
  const Gemm& gemm = fused.gemm;
  for (const Tensor* tensor : {&gemm.a, &gemm.b, &gemm.c, &gemm.bias, &fused.aux})
    if (!aligned16(tensor->data)) return false;
  return gemm.c.dtype != DType::f32 && gemm.c.size() > 0 &&
         gemm.c.shape[gemm.c.shape.rank() - 1] % kAuxElements == 0;
}

/// Expects `up` and `out` to be two matrices like C.
void check_matrices(const char* op, DType dtype, const Tensor& up, const char* name,
                    const Tensor& out) {
  const Extents extents = extents_of(op, "up", up);
  check_matrix(op, "up", up, dtype, extents);
  check_matrix(op, name, out, dtype, extents);
  TRIREME_CHECK(out.data != up.data || up.size() == 0, "{}: {} may not be up", op, name);
}

// ---- the layer --------------------------------------------------------------------------------

void check(const LinearGelu& args) {
  check_matrices("linear_gelu", args.x.dtype, args.up, "activated", args.activated);
  check_vector("linear_gelu", "bias", args.bias, args.x.dtype,
               args.up.shape[args.up.shape.rank() - 1]);
}

Fused fused_form(const LinearGelu& args) {
  return {.gemm = {.a = args.x,
                   .b = args.weight,
                   .c = args.activated,
                   .transpose_b = true,
                   .bias = args.bias},
          .epilogue = Epilogue::gelu,
          .aux = args.up};
}

void after_fused(const LinearGelu&, const Context&) {}

Gemm plain_product(const LinearGelu& args) {
  return {.a = args.x, .b = args.weight, .c = args.up, .transpose_b = true, .bias = args.bias};
}

void after_plain(const LinearGelu& args, const Context& context) {
  gelu_forward({.x = args.up, .out = args.activated}, context);
}

/// On operands to time with; nothing where there is no memory for those that are added to.
std::optional<LinearGelu> trial_of(const LinearGelu& args, StandIns& stand_ins) {
  return LinearGelu{.x = stand_ins.instead_of(args.x),
                    .weight = stand_ins.instead_of(args.weight),
                    .bias = stand_ins.instead_of(args.bias),
                    .up = stand_ins.instead_of(args.up),
                    .activated = stand_ins.instead_of(args.activated)};
}

// ---- its gradient -----------------------------------------------------------------------------

void check(const LinearGeluGradient& args) {
  check_matrices("linear_gelu_gradient", args.dy.dtype, args.up, "dup", args.dup);
  check_vector("linear_gelu_gradient", "dbias", args.dbias, DType::f32,
               args.up.shape[args.up.shape.rank() - 1]);
}

Fused fused_form(const LinearGeluGradient& args) {
  return {.gemm = {.a = args.dy, .b = args.weight, .c = args.dup},
          .epilogue = Epilogue::gelu_gradient,
          .aux = args.up};
}

void after_fused(const LinearGeluGradient& args, const Context& context) {
  bias_gradient({.dout = args.dup, .dbias = args.dbias}, context);
}

Gemm plain_product(const LinearGeluGradient& args) {
  return {.a = args.dy, .b = args.weight, .c = args.dup};
}

void after_plain(const LinearGeluGradient& args, const Context& context) {
  gelu_backward({.dout = args.dup, .x = args.up, .dx = args.dup, .dbias = args.dbias}, context);
}

std::optional<LinearGeluGradient> trial_of(const LinearGeluGradient& args, StandIns& stand_ins) {
  const LinearGeluGradient trial{.dy = stand_ins.instead_of(args.dy),
                                 .weight = stand_ins.instead_of(args.weight),
                                 .up = stand_ins.instead_of(args.up),
                                 .dup = stand_ins.instead_of(args.dup),
                                 .dbias = stand_ins.instead_of(args.dbias)};
  return trial.dbias.data == args.dbias.data ? std::nullopt : std::optional(trial);
}

// ---- both -------------------------------------------------------------------------------------

/// Runs one of the operations in its faster form.
template <typename Args>
class GeluForms {
 public:
  GeluForms(GemmRunner& products, Chooser& chooser, const Context& context)
      : products_(products), chooser_(chooser), context_(context) {}

  void run(const Args& args) {
    check(args);
    const Fused form = fused_form(args);
    if (chooser_.fusion() == Fusion::never || !fusable(form)) return separate(args);
    check_workspace("gemm", context_, kGemmWorkspace);
    Product product = product_of(form.gemm);
    product.epilogue = form.epilogue;
    const auto race = [&](const Matmul& matmul, const std::vector<Algorithm>& candidates) {
      return faster(matmul, candidates, args);
    };
    const Plan& plan = chooser_.plan(product, race);
    if (!plan.algorithm) return separate(args);
    const cublasStatus_t status = fused(*plan.matmul, *plan.algorithm, args);
    if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
      chooser_.library().check(status, to_string(product).c_str(), __FILE__, __LINE__);
  }

 private:
  void separate(const Args& args) {
    products_(plain_product(args), context_);
    after_plain(args, context_);
  }

  cublasStatus_t fused(const Matmul& matmul, const Algorithm& algorithm, const Args& args) {
    const Fused form = fused_form(args);
    Operands operands = operands_of(form.gemm);
    operands.aux = form.aux.data;
    const cublasStatus_t status = matmul.run(algorithm, operands, context_);
    if (status == CUBLAS_STATUS_SUCCESS) after_fused(args, context_);
    return status;
  }

  /// The fastest of `candidates`, or kSeparate if the separate form takes part and wins.
  std::optional<Algorithm> faster(const Matmul& matmul, const std::vector<Algorithm>& candidates,
                                  const Args& args) {
    if (candidates.empty()) return std::nullopt;
    const std::size_t separate_forms = chooser_.fusion() == Fusion::timed ? 1 : 0;
    // Its product is chosen first, so that the separate form is at its best, and the GPU warm.
    if (separate_forms > 0) products_.prepare(plain_product(args), context_);
    StandIns stand_ins(context_);
    const std::optional<Args> trial = trial_of(args, stand_ins);
    if (!trial) return separate_forms > 0 ? kSeparate : candidates.front();
    const auto queue = [&](std::size_t way) {
      if (way >= separate_forms)
        return fused(matmul, candidates[way - separate_forms], *trial) == CUBLAS_STATUS_SUCCESS;
      separate(*trial);
      return true;
    };
    const auto winner = fastest(separate_forms + candidates.size(), queue, context_,
                                chooser_.warm(), separate_forms + kMostFused);
    if (!winner) return std::nullopt;
    return *winner < separate_forms ? kSeparate : candidates[*winner - separate_forms];
  }

  GemmRunner& products_;
  Chooser& chooser_;
  const Context& context_;
};

}  // namespace

void GemmRunner::linear_gelu(const LinearGelu& args, const Context& context) {
  GeluForms<LinearGelu>(*this, *chooser_, context).run(args);
}

void GemmRunner::linear_gelu_gradient(const LinearGeluGradient& args, const Context& context) {
  GeluForms<LinearGeluGradient>(*this, *chooser_, context).run(args);
}

}  // namespace trireme::kernels::cuda
