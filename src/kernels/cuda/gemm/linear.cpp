// Operations with two forms: a GEMM with an epilogue, or a GEMM and then a separate kernel
// for what the epilogue would do, bound by bytes. The first saves a trip to memory and back, but
// its GEMM may be slower by more than that: it depends on shape, GPU and library, so both are
// timed.
#include <optional>
#include <vector>

#include "core/cuda/check.hpp"
#include "kernels/cuda/common/partials.hpp"
#include "kernels/cuda/gemm/chooser.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/linear.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

/// A GEMM with an epilogue, and what the epilogue reads or writes besides C.
struct Fused {
  Gemm gemm;
  Epilogue epilogue;
  Tensor aux;
  Tensor sums = {};  ///< of fp32, what own kernels add their sums to
  Tensor out = {};   ///< what is written in place of C, where it has another shape
};

/// Whether cuBLASLt may have a kernel for it, and one that is worth asking for.
bool fusable(const Fused& fused);

/// So many candidates with an epilogue are timed at length at most, to keep the start of a run
/// short.
inline constexpr std::size_t kMaxFused = 5;

/// Runs an operation in its faster form. `Operation` says what the forms are, in static functions:
///   check(args, context)           throws InternalError on what it cannot run on
///   fused(args, context)           the GEMM of the fused form: a Fused
///   after_fused(args, context)     queues what is left to do after cuBLASLt's epilogue
///   GEMM(args)                  that of the separate form: a Gemm
///   after_gemm(args, context)   queues what is left to do after it
///   trial(args, stand_ins)         operands to time with; nothing where there is no memory for
///                                  those that are added to
///   kNear (if it is there)         how many times as long the separate form may take and be chosen
/// args being an Operation::Args.
template <typename Operation>
class Forms {
 public:
  using Args = typename Operation::Args;

  Forms(GemmRunner& gemms, Chooser& chooser, const Context& context)
      : gemms_(gemms), chooser_(chooser), context_(context) {}

  /// In the separate form, without a choice.
  void run_separately(const Args& args) {
    Operation::check(args, context_);
    separately(args);
  }

  void run(const Args& args) {
    Operation::check(args, context_);
    const Fused form = Operation::fused(args, context_);
    if (chooser_.fusion() == Fusion::never || !fusable(form)) return separately(args);
    GemmProblem problem = problem_of(form.gemm);
    problem.epilogue = form.epilogue;
    if constexpr (requires { args.arrivals; })
      if (args.arrivals) return run_in_parts(problem, form, args);
    const auto race = [&](const Plan& plan, const std::vector<Algorithm>& candidates) {
      return faster(plan, candidates, args);
    };
    const Plan& plan = chooser_.plan(problem, race);
    if (!plan.algorithm) return separate(args);
    const cublasStatus_t status = fused(plan, *plan.algorithm, args);
    if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
      chooser_.library().check(status, to_string(problem).c_str(), __FILE__, __LINE__);
  }

 private:
  void separate(const Args& args) {
    gemms_.gemm(Operation::problem(args), context_);
    Operation::after_gemm(args, context_);
  }

  /// separate(), after the last part of rows has come.
  void separately(const Args& args) {
    if constexpr (requires { args.arrivals; })
      trireme::cuda::await_parts(context_.stream, args.arrivals);
    separate(args);
  }

  /// By an own kernel, if there is one, which reads the parts as they come.
  void run_in_parts(const GemmProblem& problem, const Fused& form, const Args& args) {
    if (chooser_.own().runs_in_parts(problem, args.arrivals.parts)) {
      Operands operands = operands_of(form);
      operands.arrivals = args.arrivals;
      return chooser_.own().run(problem, operands, context_);
    }
    trireme::cuda::await_parts(context_.stream, args.arrivals);
    Args whole = args;
    whole.arrivals = {};
    run(whole);
  }

  static Operands operands_of(const Fused& form) {
    Operands operands = cuda::operands_of(form.gemm);
    operands.aux = form.aux.data;
    operands.vector = static_cast<float*>(form.sums.data);
    if (form.out) operands.c = form.out.data;
    return operands;
  }

  cublasStatus_t fused(const Plan& plan, const Algorithm& algorithm, const Args& args) {
    const Fused form = Operation::fused(args, context_);
    const Operands operands = operands_of(form);
    const cublasStatus_t status = chooser_.run(plan, algorithm, operands, context_);
    if (status == CUBLAS_STATUS_SUCCESS && !is_own(algorithm))
      Operation::after_fused(args, context_);
    return status;
  }

  /// The fastest of `candidates`, or kSeparate if the separate form takes part and wins.
  std::optional<Algorithm> faster(const Plan& plan, const std::vector<Algorithm>& candidates,
                                  const Args& args) {
    if (candidates.empty()) return std::nullopt;
    const std::size_t separate_forms = chooser_.fusion() == Fusion::timed ? 1 : 0;
    // Its GEMM is chosen first, so that the separate form is at its best, and the GPU warm.
    if (separate_forms > 0) gemms_.prepare(Operation::problem(args), context_);
    StandIns stand_ins(context_);
    const std::optional<Args> trial = Operation::trial(args, stand_ins);
    if (!trial) return separate_forms > 0 ? kSeparate : candidates.front();
    const auto queue = [&](std::size_t way) {
      if (way >= separate_forms)
        return fused(plan, candidates[way - separate_forms], *trial) == CUBLAS_STATUS_SUCCESS;
      separate(*trial);
      return true;
    };
    constexpr float kNear = [] {
      if constexpr (requires { Operation::kNear; }) return Operation::kNear;
      return kEqual;
    }();
    const auto winner = fastest(separate_forms + candidates.size(), queue, context_,
                                chooser_.warm(), separate_forms + kMaxFused, kNear);
    if (!winner) return std::nullopt;
    return *winner < separate_forms ? kSeparate : candidates[*winner - separate_forms];
  }

  GemmRunner& gemms_;
  Chooser& chooser_;
  const Context& context_;
};

// cuBLASLt wants the rows of an epilogue's other matrix to be a multiple of this long, and its
// kernels for tensor cores those of all matrices.
constexpr std::int64_t kRowElements = 8;

bool whole_rows(const Tensor& tensor) {
  return tensor.size() > 0 && tensor.shape[tensor.shape.rank() - 1] % kRowElements == 0;
}

bool fusable(const Fused& fused) {
  const Gemm& gemm = fused.gemm;
  for (const Tensor* tensor : {&gemm.a, &gemm.b, &gemm.c, &gemm.bias, &fused.aux, &fused.out})
    if (!aligned16(tensor->data)) return false;
  return gemm.a.dtype != DType::f32 && whole_rows(gemm.c) && whole_rows(fused.aux);
}

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

// cuBLASLt has neither of the two next epilogues: the fused form is an own kernel's, or there is
// none.

struct GatedLayer {
  using Args = LinearGated;

  /// In a step, whose power bounds it, the own kernel loses to cuBLASLt's what it seems to win
  /// here: for 8192 tokens of Llama-3.1-8B it took 1.9 % less when timed, and steps became 0.35 %
  /// longer.
  static constexpr float kNear = 1.03f;

  static void check(const Args& args, const Context& context) {
    const char* op = "linear_gated";
    const Extents extents = extents_of(op, "gated_out", args.gated_out);
    check_matrix(op, "gated_out", args.gated_out, args.x.dtype, extents);
    check_matrix(op, "fc1_out", args.fc1_out, args.x.dtype, {extents.rows, 2 * extents.columns});
    check_workspace(op, context, kGemmWorkspace);
  }

  static Fused fused(const Args& args, const Context&) {
    return {.gemm = problem(args), .epilogue = Epilogue::gated, .aux = args.gated_out};
  }
  static void after_fused(const Args&, const Context&) {}

  static Gemm problem(const Args& args) {
    return {.a = args.x,
            .b = args.weight,
            .c = args.fc1_out,
            .transpose_b = true,
            .arrivals = args.arrivals};
  }
  static void after_gemm(const Args& args, const Context& context) {
    gated_forward({.x = args.fc1_out, .out = args.gated_out, .function = args.function}, context);
  }

  static std::optional<Args> trial(const Args& args, StandIns& stand_ins) {
    return Args{.x = stand_ins.instead_of(args.x),
                .weight = stand_ins.instead_of(args.weight),
                .fc1_out = stand_ins.instead_of(args.fc1_out),
                .gated_out = stand_ins.instead_of(args.gated_out),
                .function = args.function};
  }
};

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

void GemmRunner::linear_gated(const LinearGated& args, const Context& context) {
  if (args.function == Activation::silu)
    return Forms<GatedLayer>(*this, *chooser_, context).run(args);
  GatedLayer::check(args, context);
  gemm(GatedLayer::problem(args), context);
  GatedLayer::after_gemm(args, context);
}

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
