#include "kernels/cuda/gemm/chooser.hpp"

#include <cuda_runtime_api.h>

#include "core/cuda/check.hpp"

namespace trireme::kernels::cuda {
namespace {

/// What algorithms and their times depend on besides the product.
std::string machine_name(const CublasLt& library) {
  int index = 0;
  cudaDeviceProp gpu;
  TRIREME_CUDA(cudaGetDevice(&index));
  TRIREME_CUDA(cudaGetDeviceProperties(&gpu, index));
  return fmt::format("{}, {} SMs of {}.{}, cuBLASLt {}", gpu.name, gpu.multiProcessorCount,
                     gpu.major, gpu.minor, library.GetVersion());
}

/// For so long a GPU keeps the clock that it had under load.
constexpr double kWarmSeconds = 0.05;

}  // namespace

Chooser::Chooser(std::string cache_path, GemmChoice choice, Fusion fusion)
    : file_(fusion == Fusion::always ? "" : std::move(cache_path), machine_name(library_)),
      choice_(choice),
      fusion_(choice == GemmChoice::first && fusion == Fusion::timed ? Fusion::never : fusion) {}

bool Chooser::warm() const { return timed_ > 0 && since_timed_.seconds() < kWarmSeconds; }

const Plan& Chooser::make(const Product& product, const Race& race) {
  Plan plan{.product = product,
            .matmul = std::make_unique<Matmul>(library_, product),
            .algorithm = std::nullopt};
  plan.algorithm = choose(plan, race);
  if (plan.algorithm == kSeparate) plan.algorithm.reset();
  if (plan.algorithm && product.epilogue != Epilogue::none) ++fused_;
  return plans_.emplace(product, std::move(plan)).first->second;
}

cublasStatus_t Chooser::run(const Plan& plan, const Algorithm& algorithm, const Operands& operands,
                            const Context& context) const {
  if (!is_own(algorithm)) return plan.matmul->run(algorithm, operands, context);
  own_.run(plan.product, operands, context);
  return CUBLAS_STATUS_SUCCESS;
}

std::optional<Algorithm> Chooser::choose(const Plan& plan, const Race& race) {
  const Product& product = plan.product;
  std::vector<Algorithm> candidates;
  if (choice_ == GemmChoice::first) {
    candidates = plan.matmul->candidates();
    return candidates.empty() ? std::nullopt : std::optional(candidates.front());
  }
  const auto usable = [&](const Algorithm& algorithm) {
    if (algorithm == kSeparate) return product.epilogue != Epilogue::none;
    return is_own(algorithm) ? own_.usable(product, algorithm) : plan.matmul->usable(algorithm);
  };
  const std::optional<Algorithm> noted = file_.find(product);
  if (noted && usable(*noted)) return noted;
  candidates = plan.matmul->candidates();
  for (const Algorithm& own : own_.candidates(product)) candidates.push_back(own);
  const std::optional<Algorithm> winner = race(plan, candidates);
  since_timed_ = Stopwatch();
  if (!winner) return std::nullopt;
  ++timed_;
  return file_.settle(product, *winner, usable);
}

}  // namespace trireme::kernels::cuda
