// Which of cuBLASLt's algorithms, or which own kernel, runs which GEMM.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/gemm/hopper/hopper_gemms.hpp"
#include "kernels/cuda/gemm/matmul.hpp"
#include "kernels/cuda/gemm/plans.hpp"

namespace trireme::kernels::cuda {

/// How a product is run; without an algorithm, by other kernels.
struct Plan {
  Product product;
  std::unique_ptr<Matmul> matmul;
  std::optional<Algorithm> algorithm;
};

/// Chooses once for each product, and keeps the choice in memory and in the file.
class Chooser {
 public:
  /// As GemmRunner.
  Chooser(std::string cache_path, GemmChoice choice, Fusion fusion);

  /// Finds the fastest algorithm among the candidates, the library's and own ones, by running them:
  /// one of them, kSeparate, or nothing when none runs.
  using Race = std::function<std::optional<Algorithm>(const Plan& plan,
                                                      const std::vector<Algorithm>& candidates)>;

  /// The plan for `product`. When it is new, and the file knows none that can be used, `race` is
  /// held, a Race.
  template <typename Holder>
  const Plan& plan(const Product& product, const Holder& race) {
    const auto known = plans_.find(product);
    return known != plans_.end() ? known->second : make(product, race);
  }

  /// Enqueues `algorithm`, the library's or an own one, for the plan's product.
  cublasStatus_t run(const Plan& plan, const Algorithm& algorithm, const Operands& operands,
                     const Context& context) const;

  /// Whether the GPU was under load until now, for the races before.
  bool warm() const;

  const CublasLt& library() const { return library_; }
  /// Timed only where products are.
  Fusion fusion() const { return fusion_; }
  int timed_products() const { return timed_; }
  int fused_products() const { return fused_; }

 private:
  const Plan& make(const Product& product, const Race& race);
  std::optional<Algorithm> choose(const Plan& plan, const Race& race);

  CublasLt library_;
  HopperGemms own_;
  GemmPlans file_;
  GemmChoice choice_;
  Fusion fusion_;
  std::map<Product, Plan> plans_;
  int timed_ = 0;
  int fused_ = 0;
  Stopwatch since_timed_;
};

}  // namespace trireme::kernels::cuda
