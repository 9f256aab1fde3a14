// Operations with two forms: a GEMM with an epilogue, or a GEMM and then a separate kernel
// for what the epilogue would do, bound by bytes. The first saves a trip to memory and back, but
// its GEMM may be slower by more than that: it depends on shape, GPU and library, so both are
// timed.
#pragma once

#include <optional>
#include <vector>

#include "core/cuda/driver.hpp"
#include "kernels/cuda/gemm/chooser.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/preconditions.hpp"

namespace trireme::kernels::cuda {

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
    const auto winner = fastest(separate_forms + candidates.size(), queue, context_,
                                chooser_.warm(), separate_forms + kMaxFused);
    if (!winner) return std::nullopt;
    return *winner < separate_forms ? kSeparate : candidates[*winner - separate_forms];
  }

  GemmRunner& gemms_;
  Chooser& chooser_;
  const Context& context_;
};

}  // namespace trireme::kernels::cuda
