// Chooses the algorithm of each GEMM once, by timing the candidates.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/gemm/hopper/hopper_gemms.hpp"
#include "kernels/cuda/gemm/matmul.hpp"
#include "kernels/cuda/gemm/plans.hpp"

namespace trireme::kernels::cuda {

/// Operands to time with: random numbers in separate memory.
class StandIns {
 public:
  explicit StandIns(const Context& context) : context_(context) {}

  /// A tensor like `tensor`, which lasts as long as this; `tensor` itself where there is no memory
  /// for it.
  Tensor instead_of(const Tensor& tensor);

 private:
  const Context& context_;
  std::vector<std::shared_ptr<void>> memory_;
};

/// Among ways as near as this, their order decides, which is the library's: less depends on chance.
inline constexpr float kEqual = 1.005f;

/// The fastest of `count` ways, the first of them that take at most `equal` times as long as it;
/// nothing when none runs. `run(i)` queues way i on context.stream, and returns whether it could.
/// Those `longest` that do best in a few calls are timed at length. `warm`: the GPU has been under
/// load until now. Waits for context.stream.
std::optional<std::size_t> fastest(std::size_t count, const std::function<bool(std::size_t)>& run,
                                   const Context& context, bool warm,
                                   std::size_t longest = std::numeric_limits<std::size_t>::max(),
                                   float equal = kEqual);

/// How a GEMM is run; without an algorithm, by other kernels.
struct Plan {
  GemmProblem problem;
  std::unique_ptr<Matmul> matmul;
  std::optional<Algorithm> algorithm;
};

/// Chooses once for each GEMM, and keeps the choice in memory and in the file.
class Chooser {
 public:
  /// As GemmRunner.
  Chooser(std::string cache_path, GemmChoice choice, Fusion fusion);

  /// Finds the fastest algorithm among the candidates, the library's and own ones, by running them:
  /// one of them, kSeparate, or nothing when none runs.
  using Race = std::function<std::optional<Algorithm>(const Plan& plan,
                                                      const std::vector<Algorithm>& candidates)>;

  /// The plan for `problem`. When it is new, and the file knows none that can be used, `race` is
  /// held, a Race.
  template <typename Holder>
  const Plan& plan(const GemmProblem& problem, const Holder& race) {
    const auto known = plans_.find(problem);
    return known != plans_.end() ? known->second : make(problem, race);
  }

  /// Enqueues `algorithm`, the library's or an own one, for the plan's GEMM.
  cublasStatus_t run(const Plan& plan, const Algorithm& algorithm, const Operands& operands,
                     const Context& context) const;

  /// The own kernels.
  const HopperGemms& own() const { return own_; }

  /// Whether the GPU was under load until now, for the races before.
  bool warm() const;

  const CublasLt& library() const { return library_; }
  /// As given; see Fusion.
  Fusion fusion() const { return fusion_; }
  int timed_gemms() const { return timed_; }
  int fused_gemms() const { return fused_; }

 private:
  const Plan& make(const GemmProblem& problem, const Race& race);
  std::optional<Algorithm> choose(const Plan& plan, const Race& race);

  CublasLt library_;
  HopperGemms own_;
  GemmPlans file_;
  GemmChoice choice_;
  Fusion fusion_;
  std::map<GemmProblem, Plan> plans_;
  int timed_ = 0;
  int fused_ = 0;
  Stopwatch since_timed_;
};

}  // namespace trireme::kernels::cuda
