#include "kernels/cuda/gemm.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <optional>

#include "core/clock.hpp"
#include "core/cuda/check.hpp"
#include "kernels/cuda/gemm/matmul.hpp"
#include "kernels/cuda/gemm/plain.hpp"
#include "kernels/cuda/gemm/plans.hpp"
#include "kernels/cuda/gemm/timing.hpp"
#include "kernels/cuda/preconditions.hpp"
#include "kernels/cuda/workspace.hpp"

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

/// The product that `args` asks for, its preconditions checked.
Product product_of(const Gemm& args) {
  const DType dtype = args.a.dtype;
  const auto [m, n] = extents_of("gemm", "c", args.c);
  const Extents a = extents_of("gemm", "a", args.a);
  const std::int64_t k = args.transpose_a ? a.rows : a.columns;
  TRIREME_CHECK(dtype != DType::f64, "gemm: CUDA kernels do not compute in fp64");
  const DType result = args.c.dtype == wide(dtype) ? wide(dtype) : dtype;
  check_matrix("gemm", "a", args.a, dtype, args.transpose_a ? Extents{k, m} : Extents{m, k});
  check_matrix("gemm", "b", args.b, dtype, args.transpose_b ? Extents{n, k} : Extents{k, n});
  check_matrix("gemm", "c", args.c, result, {m, n});
  if (args.bias) {
    check_vector("gemm", "bias", args.bias, dtype, n);
    TRIREME_CHECK(args.beta == 0.0, "gemm: a bias is added with beta 0 only");
    TRIREME_CHECK(result == dtype, "gemm: a bias of {} cannot be added to a result of {}",
                  name_of(dtype), name_of(result));
  }
  return {.m = m,
          .n = n,
          .k = k,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .operands = dtype,
          .result = result,
          .adds = args.beta != 0.0,
          .bias = static_cast<bool>(args.bias),
          .alignment_a = alignment_of(args.a.data),
          .alignment_b = alignment_of(args.b.data),
          .alignment_c = alignment_of(args.c.data)};
}

/// For so long a GPU keeps the clock that it had under load.
constexpr double kWarmSeconds = 0.05;

/// How a product is run; on the plain kernel when there is no algorithm.
struct Plan {
  std::unique_ptr<Matmul> matmul;
  std::optional<Algorithm> algorithm;
};

}  // namespace

struct GemmRunner::State {
  State(std::string cache_path, GemmChoice how)
      : file(std::move(cache_path), machine_name(library)), choice(how) {}

  /// The plan for `product`, made when it is new.
  const Plan& plan(const Product& product, const Gemm& args, const Context& context) {
    const auto known = plans.find(product);
    if (known != plans.end()) return known->second;
    Plan plan;
    plan.matmul = std::make_unique<Matmul>(library, product);
    plan.algorithm = choose(*plan.matmul, product, args, context);
    return plans.emplace(product, std::move(plan)).first->second;
  }

  std::optional<Algorithm> choose(const Matmul& matmul, const Product& product, const Gemm& args,
                                  const Context& context) {
    if (choice == GemmChoice::first) {
      const std::vector<Algorithm> candidates = matmul.candidates();
      return candidates.empty() ? std::nullopt : std::optional(candidates.front());
    }
    const auto usable = [&](const Algorithm& algorithm) { return matmul.usable(algorithm); };
    const std::optional<Algorithm> noted = file.find(product);
    if (noted && usable(*noted)) return noted;
    const bool warm = timed > 0 && since_timed.seconds() < kWarmSeconds;
    const auto winner = fastest(matmul, matmul.candidates(), args, context, warm);
    since_timed = Stopwatch();
    if (!winner) return std::nullopt;
    ++timed;
    return file.settle(product, *winner, usable);
  }

  CublasLt library;
  GemmPlans file;
  GemmChoice choice;
  std::map<Product, Plan> plans;
  int timed = 0;
  Stopwatch since_timed;
};

GemmRunner::GemmRunner(std::string cache_path, GemmChoice choice)
    : state_(std::make_unique<State>(std::move(cache_path), choice)) {}

GemmRunner::~GemmRunner() = default;

int GemmRunner::timed_products() const { return state_->timed; }

void GemmRunner::operator()(const Gemm& args, const Context& context) {
  const Product product = product_of(args);
  if (product.m == 0 || product.n == 0) return;
  check_workspace("gemm", context, kGemmWorkspace);
  if (product.bias && !aligned16(args.bias.data)) return gemm_plain(args, context);
  const Plan& plan = state_->plan(product, args, context);
  if (!plan.algorithm) return gemm_plain(args, context);
  const cublasStatus_t status = plan.matmul->run(*plan.algorithm,
                                                 {.a = args.a.data,
                                                  .b = args.b.data,
                                                  .c = args.c.data,
                                                  .bias = args.bias.data,
                                                  .beta = static_cast<float>(args.beta)},
                                                 context);
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    state_->library.check(status, to_string(product).c_str(), __FILE__, __LINE__);
}

}  // namespace trireme::kernels::cuda
