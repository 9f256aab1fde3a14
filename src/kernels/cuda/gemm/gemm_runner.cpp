#include "kernels/cuda/gemm/gemm_runner.hpp"

#include "core/cuda/driver.hpp"
#include "kernels/cuda/gemm/chooser.hpp"
#include "kernels/cuda/gemm/plain.hpp"
#include "kernels/cuda/preconditions.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

/// The fastest of `candidates`, on random operands. Where there is no memory for those, A and B are
/// those of `args`, and so is C if it will be overwritten anyway; if it is not, the first
/// candidate wins untimed.
std::optional<Algorithm> fastest_of(const Chooser& chooser, const Plan& plan,
                                    const std::vector<Algorithm>& candidates, const Gemm& args,
                                    const Context& context) {
  if (candidates.empty()) return std::nullopt;
  StandIns stand_ins(context);
  Gemm trial = args;
  for (Tensor* operand : {&trial.a, &trial.b, &trial.c}) *operand = stand_ins.instead_of(*operand);
  if (trial.beta != 0.0 && trial.c.data == args.c.data) return candidates.front();
  const Operands operands = operands_of(trial);
  const auto run = [&](std::size_t way) {
    return chooser.run(plan, candidates[way], operands, context) == CUBLAS_STATUS_SUCCESS;
  };
  const auto winner = fastest(candidates.size(), run, context, chooser.warm());
  return winner ? std::optional(candidates[*winner]) : std::nullopt;
}

/// The plan for `problem`; none for those that cuBLASLt is not asked for.
const Plan* plan_of(Chooser& chooser, const GemmProblem& problem, const Gemm& args,
                    const Context& context) {
  check_workspace("gemm", context, kGemmWorkspace);
  if (problem.bias && !aligned16(args.bias.data)) return nullptr;
  const auto race = [&](const Plan& plan, const std::vector<Algorithm>& candidates) {
    return fastest_of(chooser, plan, candidates, args, context);
  };
  return &chooser.plan(problem, race);
}

}  // namespace

GemmRunner::GemmRunner(std::string cache_path, GemmChoice choice, Fusion fusion)
    : chooser_(std::make_unique<Chooser>(std::move(cache_path), choice, fusion)) {}

GemmRunner::~GemmRunner() = default;

int GemmRunner::timed_gemms() const { return chooser_->timed_gemms(); }

int GemmRunner::fused_gemms() const { return chooser_->fused_gemms(); }

void GemmRunner::prepare(const Gemm& args, const Context& context) {
  const GemmProblem problem = problem_of(args);
  if (problem.m > 0 && problem.n > 0) plan_of(*chooser_, problem, args, context);
}

void GemmRunner::gemm_in_parts(const GemmProblem& problem, const Gemm& args,
                               const Context& context) {
  check_workspace("gemm", context, kGemmWorkspace);
  if (chooser_->own().runs_in_parts(problem, args.arrivals.parts))
    return chooser_->own().run(problem, operands_of(args), context);
  trireme::cuda::await_parts(context.stream, args.arrivals);
  Gemm whole = args;
  whole.arrivals = {};
  gemm(whole, context);
}

void GemmRunner::gemm(const Gemm& args, const Context& context) {
  const GemmProblem problem = problem_of(args);
  if (problem.m == 0 || problem.n == 0) return;
  if (args.arrivals) return gemm_in_parts(problem, args, context);
  const Plan* const plan = plan_of(*chooser_, problem, args, context);
  if (!plan || !plan->algorithm) return gemm_plain(args, context);
  const cublasStatus_t status = chooser_->run(*plan, *plan->algorithm, operands_of(args), context);
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    chooser_->library().check(status, to_string(problem).c_str(), __FILE__, __LINE__);
}

}  // namespace trireme::kernels::cuda
