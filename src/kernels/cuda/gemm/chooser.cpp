#include "kernels/cuda/gemm/chooser.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "core/clock.hpp"
#include "core/cuda/check.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

// Calls of a GEMM are timed together for two milliseconds, in rounds over all of its ways, so
// that a change of the GPU's clock hits all alike; after a tenth of a second of load, because in
// training the GPU runs at the clock that its power allows under load, where other kernels win. A
// GPU that has just timed another GEMM needs no more than to fill its pipelines.
constexpr int kRounds = 5;
constexpr float kSampleMs = 2.0f;
constexpr int kMaxCalls = 50;
constexpr float kWarmUpMs = 100.0f;
constexpr float kStillWarmUpMs = 10.0f;
// Ways whose quickest call took more than this many of the fastest one's are out.
constexpr float kHopeless = 1.15f;

struct Contender {
  std::size_t way = 0;
  float call_ms = HUGE_VALF;
  std::vector<float> samples;
};

class Race {
 public:
  Race(const std::function<bool(std::size_t)>& run, const Context& context)
      : run_(run), stream_(context.stream) {}

  bool runs(std::size_t way) const { return run_(way); }

  /// Milliseconds of one of `calls` calls.
  float time(std::size_t way, int calls) {
    begin_.record(stream_);
    for (int i = 0; i < calls; ++i) run_(way);
    end_.record(stream_);
    end_.synchronize();
    return trireme::cuda::Event::milliseconds(begin_, end_) / static_cast<float>(calls);
  }

 private:
  const std::function<bool(std::size_t)>& run_;
  CUstream_st* const stream_;
  trireme::cuda::Event begin_{/*timed=*/true}, end_{/*timed=*/true};
};

/// Those of `count` ways that run, less the hopeless ones, after calls that load their code and put
/// the GPU under load for `warm_up_ms`.
std::vector<Contender> qualify(Race& race, std::size_t count, float warm_up_ms) {
  std::vector<Contender> contenders;
  for (std::size_t way = 0; way < count; ++way)
    if (race.runs(way)) contenders.push_back({.way = way});
  float best = HUGE_VALF, spent = 0.0f;
  for (int pass = 0; pass < 3 || (pass < 20 * kMaxCalls && spent < warm_up_ms); ++pass)
    for (Contender& contender : contenders) {
      const float ms = race.time(contender.way, 1);
      contender.call_ms = std::min(contender.call_ms, ms);
      best = std::min(best, ms);
      spent += ms;
    }
  std::erase_if(contenders, [&](const Contender& it) { return it.call_ms > kHopeless * best; });
  return contenders;
}

/// Leaves the `most` whose quickest call took least, in the order in which they were.
void shorten(std::vector<Contender>& contenders, std::size_t most) {
  if (contenders.size() <= most) return;
  std::ranges::stable_sort(contenders, {}, &Contender::call_ms);
  contenders.resize(most);
  std::ranges::sort(contenders, {}, &Contender::way);
}

}  // namespace

Tensor StandIns::instead_of(const Tensor& tensor) {
  if (tensor.bytes() == 0) return tensor;
  Tensor random = tensor;
  if (cudaMalloc(&random.data, tensor.bytes()) != cudaSuccess) {
    cudaGetLastError();  // not to be reported again by the next launch
    return tensor;
  }
  memory_.emplace_back(random.data, [](void* memory) { cudaFree(memory); });
  fill_random(random, memory_.size(), context_);
  return random;
}

std::optional<std::size_t> fastest(std::size_t count, const std::function<bool(std::size_t)>& run,
                                   const Context& context, bool warm, std::size_t longest,
                                   float equal) {
  TRIREME_CUDA(cudaStreamSynchronize(context.stream));
  Race race(run, context);
  std::vector<Contender> contenders = qualify(race, count, warm ? kStillWarmUpMs : kWarmUpMs);
  if (contenders.empty()) return std::nullopt;
  shorten(contenders, longest);
  for (int round = 0; round < kRounds; ++round)
    for (Contender& contender : contenders) {
      const float calls = std::ceil(kSampleMs / std::max(contender.call_ms, 1e-3f));
      contender.samples.push_back(
          race.time(contender.way, std::min(static_cast<int>(calls), kMaxCalls)));
    }
  float best = HUGE_VALF;
  for (const Contender& contender : contenders) best = std::min(best, median(contender.samples));
  for (const Contender& contender : contenders)
    if (median(contender.samples) <= equal * best) return contender.way;
  return std::nullopt;
}

namespace {

/// The version of this build's own GEMM kernels: to be raised when one becomes faster, or is added
/// for a GEMM that older builds timed, so that their choices are timed again.
constexpr int kOwnGemms = 1;

/// What algorithms and their times depend on in addition to the GEMM.
std::string machine_name(const CublasLt& library) {
  int index = 0;
  cudaDeviceProp gpu;
  TRIREME_CUDA(cudaGetDevice(&index));
  TRIREME_CUDA(cudaGetDeviceProperties(&gpu, index));
  return fmt::format("{}, {} SMs of {}.{}, cuBLASLt {}, own GEMMs {}", gpu.name,
                     gpu.multiProcessorCount, gpu.major, gpu.minor, library.GetVersion(),
                     kOwnGemms);
}

/// Whether an own kernel is taken untimed: those that add a bias win on each H200 timed where C has
/// at least so many elements.
bool own_wins(const GemmProblem& problem) {
  constexpr std::int64_t kElements = 30'000'000;
  return problem.bias && !problem.adds && problem.m * problem.n >= kElements;
}

/// For so long a GPU keeps the clock that it had under load.
constexpr double kWarmSeconds = 0.05;

}  // namespace

Chooser::Chooser(std::string cache_path, GemmChoice choice, Fusion fusion)
    : file_(fusion == Fusion::always ? "" : std::move(cache_path), machine_name(library_),
            fusion == Fusion::always ? "" : shipped_plans()),
      choice_(choice),
      fusion_(fusion) {}

bool Chooser::warm() const { return timed_ > 0 && since_timed_.seconds() < kWarmSeconds; }

const Plan& Chooser::make(const GemmProblem& problem, const Race& race) {
  Plan plan{.problem = problem,
            .matmul = std::make_unique<Matmul>(library_, problem),
            .algorithm = std::nullopt};
  plan.algorithm = choose(plan, race);
  if (plan.algorithm == kSeparate) plan.algorithm.reset();
  if (plan.algorithm && problem.epilogue != Epilogue::none) ++fused_;
  return plans_.emplace(problem, std::move(plan)).first->second;
}

cublasStatus_t Chooser::run(const Plan& plan, const Algorithm& algorithm, const Operands& operands,
                            const Context& context) const {
  if (!is_own(algorithm)) return plan.matmul->run(algorithm, operands, context);
  own_.run(plan.problem, operands, context);
  return CUBLAS_STATUS_SUCCESS;
}

std::optional<Algorithm> Chooser::choose(const Plan& plan, const Race& race) {
  const GemmProblem& problem = plan.problem;
  const bool untimed = choice_ == GemmChoice::heuristic;
  std::vector<Algorithm> candidates;
  const auto first = [&] {
    return candidates.empty() ? std::nullopt : std::optional(candidates.front());
  };
  if (untimed && fusion_ != Fusion::timed) {  // to compare with
    candidates = plan.matmul->candidates();
    return first();
  }
  const auto usable = [&](const Algorithm& algorithm) {
    if (algorithm == kSeparate) return problem.epilogue != Epilogue::none;
    return is_own(algorithm) ? own_.usable(problem, algorithm) : plan.matmul->usable(algorithm);
  };
  const std::optional<Algorithm> noted = file_.find(problem);
  if (noted && usable(*noted)) return noted;
  if (untimed) {
    if (own_wins(problem)) candidates = own_.candidates(problem);
    if (candidates.empty() && problem.epilogue != Epilogue::none) return kSeparate;
    if (candidates.empty()) candidates = plan.matmul->candidates();
    return first();
  }
  candidates = plan.matmul->candidates();
  for (const Algorithm& own : own_.candidates(problem)) candidates.push_back(own);
  const std::optional<Algorithm> winner = race(plan, candidates);
  since_timed_ = Stopwatch();
  if (!winner) return std::nullopt;
  ++timed_;
  return file_.settle(problem, *winner, usable);
}

// ---- the runner

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
