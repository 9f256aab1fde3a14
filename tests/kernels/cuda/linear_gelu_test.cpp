#include "kernels/linear_gelu.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/files.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/workspace.hpp"
#include "workbench.hpp"

namespace trireme::kernels {
namespace {

using cuda::Fusion;
using cuda::GemmChoice;
using cuda::GemmRunner;

// As for the GELU alone: what the hardware's exponential leaves in sums over rows.
constexpr double kFloor = 5e-6;

/// The sizes of an MLP's half.
struct Sizes {
  std::int64_t tokens, k, n;
};
// Those that cuBLASLt has epilogues for in half precision, and those that it has none for.
constexpr Sizes kFusable[] = {{256, 128, 512}, {130, 72, 200}, {384, 768, 3072}};
constexpr Sizes kOdd[] = {{1, 1, 1}, {33, 20, 45}, {64, 48, 60}};

LinearGelu make(const LinearGelu&, Workbench& bench, const Sizes& sizes) {
  const auto [tokens, k, n] = sizes;
  const double scale = 1.0 / std::sqrt(static_cast<double>(k));
  return {.x = bench.random({tokens, k}, 1),
          .weight = bench.random({n, k}, 2, scale),
          .bias = bench.random({n}, 3),
          .up = bench.poisoned({tokens, n}),
          .activated = bench.poisoned({tokens, n})};
}

LinearGeluGradient make(const LinearGeluGradient&, Workbench& bench, const Sizes& sizes) {
  const auto [tokens, k, n] = sizes;
  const double scale = 1.0 / std::sqrt(static_cast<double>(k));
  return {.dy = bench.random({tokens, k}, 1),
          .weight = bench.random({k, n}, 2, scale),
          .up = bench.random({tokens, n}, 3),
          .dup = bench.poisoned({tokens, n}),
          .dbias = bench.wide_random({n}, 4)};
}

std::vector<Output> outputs(const LinearGelu& args) {
  return {{"up", args.up}, {"activated", args.activated}};
}
std::vector<Output> outputs(const LinearGeluGradient& args) {
  return {{"dup", args.dup}, {"dbias", args.dbias}};
}

/// Rounds a tensor in the host's memory as storage of `dtype` does.
void round_to(const Tensor& tensor, DType dtype) {
  const auto size = static_cast<std::size_t>(tensor.size());
  std::vector<std::byte> stored(size * size_of(dtype));
  convert_from_float(tensor.as<float>(), size, dtype, stored.data());
  convert_to_float(stored.data(), size, dtype, tensor.as<float>());
}

/// The plain version: one operation after the other, each of which stores what it has computed.
void run_plainly(device::Backend& host, const LinearGelu& args, DType storage) {
  host.gemm({.a = args.x, .b = args.weight, .c = args.up, .transpose_b = true, .bias = args.bias});
  round_to(args.up, storage);
  host.gelu_forward({.x = args.up, .out = args.activated});
  round_to(args.activated, storage);
}
void run_plainly(device::Backend& host, const LinearGeluGradient& args, DType storage) {
  host.gemm({.a = args.dy, .b = args.weight, .c = args.dup});
  round_to(args.dup, storage);
  host.gelu_backward({.dout = args.dup, .x = args.up, .dx = args.dup, .dbias = args.dbias});
  round_to(args.dup, storage);
}

void run_exactly(device::Backend& host, const LinearGelu& args) { host.linear_gelu(args); }
void run_exactly(device::Backend& host, const LinearGeluGradient& args) {
  host.linear_gelu_gradient(args);
}

/// Runs one of the two operations with a runner of the test's own.
template <typename Args>
class CudaLinearGelu : public ::testing::Test {
 protected:
  CudaLinearGelu() { std::filesystem::remove(path_); }
  ~CudaLinearGelu() override { std::filesystem::remove(path_); }

  using Results = std::vector<std::vector<double>>;

  static Results read(Workbench& bench, const Args& args) {
    Results results;
    for (const Output& output : outputs(args)) results.push_back(bench.read(output.tensor));
    return results;
  }

  void queue(GemmRunner& runner, const LinearGelu& args) const {
    runner.linear_gelu(args, context_);
  }
  void queue(GemmRunner& runner, const LinearGeluGradient& args) const {
    runner.linear_gelu_gradient(args, context_);
  }

  Results on_gpu(GemmRunner& runner, const Sizes& sizes, DType storage) const {
    Workbench bench(true, storage, storage);
    const Args args = make(Args{}, bench, sizes);
    queue(runner, args);
    return read(bench, args);
  }

  void expect_right(GemmRunner& runner, const Sizes& sizes, DType storage) const {
    const Results actual = on_gpu(runner, sizes, storage);
    Workbench plain(false, DType::f32, storage), exact(false, DType::f64, storage);
    const Args plain_args = make(Args{}, plain, sizes), exact_args = make(Args{}, exact, sizes);
    run_plainly(plain.backend(), plain_args, storage);
    run_exactly(exact.backend(), exact_args);
    const Results rough = read(plain, plain_args), right = read(exact, exact_args);
    const std::vector<Output> named = outputs(plain_args);
    const auto& [tokens, k, n] = sizes;
    for (std::size_t i = 0; i < named.size(); ++i)
      expect_as_near(fmt::format("{}x{}x{} {}: {}", tokens, n, k, name_of(storage), named[i].name),
                     actual[i], rough[i], right[i], kFloor);
    EXPECT_EQ(on_gpu(runner, sizes, storage), actual) << "other bits the second time";
  }

  const std::string path_ =
      ::testing::TempDir() + "linear_gelu_" + std::to_string(::getpid()) + ".txt";
  const device::Buffer workspace_ = gpu().allocate(cuda::kGemmWorkspace, "a test");
  const cuda::Context context_{.stream = gpu().stream(),
                               .workspace = static_cast<std::byte*>(workspace_.get()),
                               .workspace_bytes = cuda::kGemmWorkspace,
                               .multiprocessors = 16};
};

using BothOperations = ::testing::Types<LinearGelu, LinearGeluGradient>;
TYPED_TEST_SUITE(CudaLinearGelu, BothOperations);

TYPED_TEST(CudaLinearGelu, MatchesTheHostInOneKernel) {
  for (const GemmChoice choice : {GemmChoice::first, GemmChoice::timed}) {
    GemmRunner runner("", choice, Fusion::always);
    int products = 0;
    for (const DType storage : {DType::bf16, DType::f16})
      for (const Sizes& sizes : kFusable) {
        this->expect_right(runner, sizes, storage);
        EXPECT_EQ(runner.fused_products(), ++products) << "there is no such kernel";
      }
  }
}

TYPED_TEST(CudaLinearGelu, MatchesTheHostInTwoKernels) {
  GemmRunner runner("", GemmChoice::first, Fusion::never);
  for (const DType storage : kStorageTypes)
    for (const Sizes& sizes : kFusable) this->expect_right(runner, sizes, storage);
  EXPECT_EQ(runner.fused_products(), 0);
}

// Timing the two forms adds nothing to dbias.
TYPED_TEST(CudaLinearGelu, MatchesTheHostInTheFasterForm) {
  GemmRunner runner("");
  for (const Sizes& sizes : kFusable) this->expect_right(runner, sizes, DType::bf16);
  EXPECT_EQ(runner.timed_products(), 2 * static_cast<int>(std::size(kFusable)))
      << "each time the plain product, and the two forms";
}

TYPED_TEST(CudaLinearGelu, OddSizesAndFp32TakeTwoKernels) {
  GemmRunner runner("", GemmChoice::first, Fusion::always);
  for (const Sizes& sizes : kOdd)
    for (const DType storage : kStorageTypes) this->expect_right(runner, sizes, storage);
  for (const Sizes& sizes : kFusable) this->expect_right(runner, sizes, DType::f32);
  EXPECT_EQ(runner.fused_products(), 0);
}

TYPED_TEST(CudaLinearGelu, OperandsAtAnyElementTakeTwoKernels) {
  const Sizes sizes = kFusable[0];
  GemmRunner fused("", GemmChoice::first, Fusion::always);
  Workbench bench(true, DType::bf16, DType::bf16);
  TypeParam args = make(TypeParam{}, bench, sizes), shifted = args;
  // One element further on than allocated.
  std::vector<double> up = bench.read(args.up);
  up.insert(up.begin(), 7.0);
  const Tensor longer = bench.given({static_cast<std::int64_t>(up.size())}, up);
  shifted.up = longer.rows(1, args.up.size()).view(args.up.shape);
  this->queue(fused, shifted);
  EXPECT_EQ(fused.fused_products(), 0);
  EXPECT_EQ(bench.read(longer).front(), 7.0);
  const std::string name = outputs(args).back().name;
  const std::vector<double> actual = bench.read(outputs(args).back().tensor);
  GemmRunner separate("", GemmChoice::first, Fusion::never);
  const std::vector<double> expected = this->on_gpu(separate, sizes, DType::bf16).back();
  EXPECT_LE(relative_error(actual, expected), 0.01) << name;
}

TYPED_TEST(CudaLinearGelu, NoRowsAreNoWork) {
  GemmRunner runner("", GemmChoice::first, Fusion::always);
  Workbench bench(true, DType::bf16, DType::bf16);
  this->queue(runner, make(TypeParam{}, bench, {0, 16, 32}));
  gpu().synchronize();
}

TYPED_TEST(CudaLinearGelu, TheChoiceIsKeptInMemoryAndInTheFile) {
  const Sizes sizes = kFusable[0];
  GemmRunner timing(this->path_);
  const auto first = this->on_gpu(timing, sizes, DType::bf16);
  EXPECT_EQ(timing.timed_products(), 2);
  EXPECT_EQ(this->on_gpu(timing, sizes, DType::bf16), first);
  EXPECT_EQ(timing.timed_products(), 2);

  GemmRunner reading(this->path_);
  EXPECT_EQ(this->on_gpu(reading, sizes, DType::bf16), first);
  EXPECT_EQ(reading.fused_products(), timing.fused_products());
  EXPECT_EQ(reading.timed_products(), 0);
}

TYPED_TEST(CudaLinearGelu, TheFileMaySayThatTwoKernelsAreFaster) {
  const Sizes sizes = kFusable[0];
  GemmRunner timing(this->path_);
  this->on_gpu(timing, sizes, DType::bf16);
  std::string content;
  std::ifstream file(this->path_);
  for (std::string line; std::getline(file, line);) {
    if (line.find(" gelu") != std::string::npos)
      line = line.substr(0, line.rfind('\t') + 1) + "separate";
    content += line + "\n";
  }
  write_file_atomically(this->path_, content);

  GemmRunner reading(this->path_), separate(this->path_, GemmChoice::timed, Fusion::never);
  EXPECT_EQ(this->on_gpu(reading, sizes, DType::bf16), this->on_gpu(separate, sizes, DType::bf16));
  EXPECT_EQ(reading.fused_products(), 0);
  EXPECT_EQ(reading.timed_products(), 0);
}

TYPED_TEST(CudaLinearGelu, ForcedFormsAreKeptOutOfTheFile) {
  GemmRunner forced(this->path_, GemmChoice::timed, Fusion::always);
  this->on_gpu(forced, kFusable[0], DType::bf16);
  EXPECT_EQ(forced.timed_products(), 1);
  EXPECT_FALSE(std::filesystem::exists(this->path_));
}

TEST(LinearGelu, TheBackendRunsBoth) {
  for (const DType storage : kStorageTypes) {
    Workbench bench(true, storage, storage);
    const LinearGelu forward = make(LinearGelu{}, bench, {64, 32, 96});
    gpu().linear_gelu(forward);
    const LinearGeluGradient backward = make(LinearGeluGradient{}, bench, {64, 32, 96});
    gpu().linear_gelu_gradient(backward);
    Workbench host(false, DType::f64, storage);
    const LinearGelu exact = make(LinearGelu{}, host, {64, 32, 96});
    host.backend().linear_gelu(exact);
    const LinearGeluGradient exact_backward = make(LinearGeluGradient{}, host, {64, 32, 96});
    host.backend().linear_gelu_gradient(exact_backward);
    EXPECT_LE(relative_error(bench.read(forward.activated), host.read(exact.activated)), 0.01);
    EXPECT_LE(relative_error(bench.read(backward.dup), host.read(exact_backward.dup)), 0.01);
  }
}

TEST(LinearGelu, RefusesShapesAndTypesThatDoNotMeet) {
  Workbench bench(true, DType::bf16, DType::bf16);
  const LinearGelu forward = make(LinearGelu{}, bench, {16, 8, 24});
  LinearGelu args = forward;
  args.activated = args.up;
  EXPECT_THROW(gpu().linear_gelu(args), InternalError);
  args = forward;
  args.bias = {};
  EXPECT_THROW(gpu().linear_gelu(args), InternalError);
  args = forward;
  args.x = args.x.rows(0, 15);
  EXPECT_THROW(gpu().linear_gelu(args), InternalError);
  const LinearGeluGradient backward = make(LinearGeluGradient{}, bench, {16, 8, 24});
  LinearGeluGradient gradient = backward;
  gradient.dup = gradient.up;
  EXPECT_THROW(gpu().linear_gelu_gradient(gradient), InternalError);
  gradient = backward;
  gradient.dbias = bench.given({24}, std::vector<double>(24, 0.0));
  EXPECT_THROW(gpu().linear_gelu_gradient(gradient), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
