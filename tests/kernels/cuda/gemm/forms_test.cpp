// The operations that run as a GEMM with an epilogue or as two kernels, in either form.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../workbench.hpp"
#include "core/files.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels {
namespace {

using cuda::Fusion;
using cuda::GemmChoice;
using cuda::GemmRunner;

// What the hardware's exponential leaves in sums over rows, and what tensor cores lose, which
// truncate as they add up, over 384 terms.
constexpr double kFloor = 6e-6;

/// The sizes of a GEMM with an epilogue: of an MLP's half, or of a layer of k features in and n
/// out.
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
          .fc1_out = bench.poisoned({tokens, n}),
          .gelu_out = bench.poisoned({tokens, n})};
}

LinearGeluGradient make(const LinearGeluGradient&, Workbench& bench, const Sizes& sizes) {
  const auto [tokens, k, n] = sizes;
  const double scale = 1.0 / std::sqrt(static_cast<double>(k));
  return {.dy = bench.random({tokens, k}, 1),
          .weight = bench.random({k, n}, 2, scale),
          .fc1_out = bench.random({tokens, n}, 3),
          .dfc1_out = bench.poisoned({tokens, n}),
          .dbias = bench.wide_random({n}, 4)};
}

LinearWeightGradient make(const LinearWeightGradient&, Workbench& bench, const Sizes& sizes) {
  const auto [tokens, k, n] = sizes;
  return {.x = bench.random({tokens, k}, 1),
          .dy = bench.random({tokens, n}, 2),
          .dweight = bench.wide_random({n, k}, 3),
          .dbias = bench.wide_random({n}, 4)};
}

std::vector<Output> outputs(const LinearGelu& args) {
  return {{"fc1_out", args.fc1_out}, {"gelu_out", args.gelu_out}};
}
std::vector<Output> outputs(const LinearGeluGradient& args) {
  return {{"dfc1_out", args.dfc1_out}, {"dbias", args.dbias}};
}
std::vector<Output> outputs(const LinearWeightGradient& args) {
  return {{"dweight", args.dweight}, {"dbias", args.dbias}};
}

/// An operand that all outputs depend on, or one of them.
Tensor& operand(LinearGelu& args) { return args.fc1_out; }
Tensor& operand(LinearGeluGradient& args) { return args.fc1_out; }
Tensor& operand(LinearWeightGradient& args) { return args.dy; }

/// Rounds a tensor in the host's memory as storage of `dtype` does.
void round_to(const Tensor& tensor, DType dtype) {
  const auto size = static_cast<std::size_t>(tensor.size());
  std::vector<std::byte> stored(size * size_of(dtype));
  convert_from_float(tensor.as<float>(), size, dtype, stored.data());
  convert_to_float(stored.data(), size, dtype, tensor.as<float>());
}

/// The plain version: one operation after the other, each of which stores what it has computed.
void run_plainly(device::Backend& host, const LinearGelu& args, DType storage) {
  host.gemm(
      {.a = args.x, .b = args.weight, .c = args.fc1_out, .transpose_b = true, .bias = args.bias});
  round_to(args.fc1_out, storage);
  host.gelu_forward({.x = args.fc1_out, .out = args.gelu_out});
  round_to(args.gelu_out, storage);
}
void run_plainly(device::Backend& host, const LinearGeluGradient& args, DType storage) {
  host.gemm({.a = args.dy, .b = args.weight, .c = args.dfc1_out});
  round_to(args.dfc1_out, storage);
  host.gelu_backward(
      {.dout = args.dfc1_out, .x = args.fc1_out, .dx = args.dfc1_out, .dbias = args.dbias});
  round_to(args.dfc1_out, storage);
}
// It stores nothing between the two.
void run_plainly(device::Backend& host, const LinearWeightGradient& args, DType) {
  host.gemm({.a = args.dy, .b = args.x, .c = args.dweight, .transpose_a = true, .beta = 1.0});
  host.bias_gradient({.dout = args.dy, .dbias = args.dbias});
}

void run_exactly(device::Backend& host, const LinearGelu& args) { host.linear_gelu(args); }
void run_exactly(device::Backend& host, const LinearGeluGradient& args) {
  host.linear_gelu_gradient(args);
}
void run_exactly(device::Backend& host, const LinearWeightGradient& args) {
  host.linear_weight_gradient(args);
}

// For the last operation, on the widest of the sizes.
constexpr std::size_t kWorkspace = cuda::kGemmWorkspace + cuda::bias_gradient_workspace(3072);

/// Runs one of the operations with a runner of the test's own.
template <typename Args>
class CudaForms : public ::testing::Test {
 protected:
  CudaForms() { std::filesystem::remove(path_); }
  ~CudaForms() override { std::filesystem::remove(path_); }

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
  void queue(GemmRunner& runner, const LinearWeightGradient& args) const {
    runner.linear_weight_gradient(args, context_);
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
      ::testing::TempDir() + "gemm_forms_" + std::to_string(::getpid()) + ".txt";
  const device::Buffer workspace_ = gpu().allocate(kWorkspace, "a test");
  const cuda::Context context_{.stream = gpu().stream(),
                               .workspace = static_cast<std::byte*>(workspace_.get()),
                               .workspace_bytes = kWorkspace,
                               .sms = 16};
};

using Operations = ::testing::Types<LinearGelu, LinearGeluGradient, LinearWeightGradient>;
TYPED_TEST_SUITE(CudaForms, Operations);

TYPED_TEST(CudaForms, MatchesTheHostInOneKernel) {
  for (const GemmChoice choice : {GemmChoice::heuristic, GemmChoice::timed}) {
    GemmRunner runner("", choice, Fusion::always);
    int gemms = 0;
    for (const DType storage : {DType::bf16, DType::f16})
      for (const Sizes& sizes : kFusable) {
        this->expect_right(runner, sizes, storage);
        EXPECT_EQ(runner.fused_gemms(), ++gemms) << "there is no such kernel";
      }
  }
}

TYPED_TEST(CudaForms, MatchesTheHostInTwoKernels) {
  GemmRunner runner("", GemmChoice::heuristic, Fusion::never);
  for (const DType storage : kStorageTypes)
    for (const Sizes& sizes : kFusable) this->expect_right(runner, sizes, storage);
  EXPECT_EQ(runner.fused_gemms(), 0);
}

// Timing the two forms adds nothing to what is added to.
TYPED_TEST(CudaForms, MatchesTheHostInTheFasterForm) {
  GemmRunner runner("");
  for (const Sizes& sizes : kFusable) this->expect_right(runner, sizes, DType::bf16);
  EXPECT_EQ(runner.timed_gemms(), 2 * static_cast<int>(std::size(kFusable)))
      << "each time the plain GEMM, and the two forms";
}

TYPED_TEST(CudaForms, OddSizesAndFp32TakeTwoKernels) {
  GemmRunner runner("", GemmChoice::heuristic, Fusion::always);
  for (const Sizes& sizes : kOdd)
    for (const DType storage : kStorageTypes) this->expect_right(runner, sizes, storage);
  for (const Sizes& sizes : kFusable) this->expect_right(runner, sizes, DType::f32);
  EXPECT_EQ(runner.fused_gemms(), 0);
}

TYPED_TEST(CudaForms, OperandsAtAnyElementTakeTwoKernels) {
  const Sizes sizes = kFusable[0];
  GemmRunner fused("", GemmChoice::heuristic, Fusion::always);
  Workbench bench(true, DType::bf16, DType::bf16);
  TypeParam args = make(TypeParam{}, bench, sizes), shifted = args;
  // One element further on than allocated.
  std::vector<double> values = bench.read(operand(args));
  values.insert(values.begin(), 7.0);
  const Tensor longer = bench.given({static_cast<std::int64_t>(values.size())}, values);
  operand(shifted) = longer.rows(1, operand(args).size()).view(operand(args).shape);
  this->queue(fused, shifted);
  EXPECT_EQ(fused.fused_gemms(), 0);
  EXPECT_EQ(bench.read(longer).front(), 7.0);
  GemmRunner separate("", GemmChoice::heuristic, Fusion::never);
  const auto expected = this->on_gpu(separate, sizes, DType::bf16);
  const std::vector<Output> named = outputs(args);
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i].tensor.data == operand(args).data) continue;  // written where it was shifted to
    EXPECT_LE(relative_error(bench.read(named[i].tensor), expected[i]), 0.01) << named[i].name;
  }
}

TYPED_TEST(CudaForms, NoRowsAreNoWork) {
  GemmRunner runner("", GemmChoice::heuristic, Fusion::always);
  Workbench bench(true, DType::bf16, DType::bf16);
  this->queue(runner, make(TypeParam{}, bench, {0, 16, 32}));
  gpu().synchronize();
}

TYPED_TEST(CudaForms, TheChoiceIsKeptInMemoryAndInTheFile) {
  const Sizes sizes = kFusable[0];
  GemmRunner timing(this->path_);
  const auto first = this->on_gpu(timing, sizes, DType::bf16);
  EXPECT_EQ(timing.timed_gemms(), 2);
  EXPECT_EQ(this->on_gpu(timing, sizes, DType::bf16), first);
  EXPECT_EQ(timing.timed_gemms(), 2);

  GemmRunner reading(this->path_);
  EXPECT_EQ(this->on_gpu(reading, sizes, DType::bf16), first);
  EXPECT_EQ(reading.fused_gemms(), timing.fused_gemms());
  EXPECT_EQ(reading.timed_gemms(), 0);
}

TYPED_TEST(CudaForms, TheFileMaySayThatTwoKernelsAreFaster) {
  const Sizes sizes = kFusable[0];
  GemmRunner timing(this->path_);
  this->on_gpu(timing, sizes, DType::bf16);
  std::string content;
  std::ifstream file(this->path_);
  for (std::string line; std::getline(file, line);) {
    if (line.find(" gelu") != std::string::npos || line.find(" bias-gradient") != std::string::npos)
      line = line.substr(0, line.rfind('\t') + 1) + "separate";
    content += line + "\n";
  }
  write_file_atomically(this->path_, content);

  GemmRunner reading(this->path_), separate(this->path_, GemmChoice::timed, Fusion::never);
  EXPECT_EQ(this->on_gpu(reading, sizes, DType::bf16), this->on_gpu(separate, sizes, DType::bf16));
  EXPECT_EQ(reading.fused_gemms(), 0);
  EXPECT_EQ(reading.timed_gemms(), 0);
}

TYPED_TEST(CudaForms, ForcedFormsAreKeptOutOfTheFile) {
  GemmRunner forced(this->path_, GemmChoice::timed, Fusion::always);
  this->on_gpu(forced, kFusable[0], DType::bf16);
  EXPECT_EQ(forced.timed_gemms(), 1);
  EXPECT_FALSE(std::filesystem::exists(this->path_));
}

TEST(Forms, TheBackendRunsAll) {
  gpu().reserve_workspace(kWorkspace);
  for (const DType storage : kStorageTypes) {
    Workbench bench(true, storage, storage);
    const LinearGelu forward = make(LinearGelu{}, bench, {64, 32, 96});
    gpu().linear_gelu(forward);
    const LinearGeluGradient backward = make(LinearGeluGradient{}, bench, {64, 32, 96});
    gpu().linear_gelu_gradient(backward);
    const LinearWeightGradient weight = make(LinearWeightGradient{}, bench, {64, 32, 96});
    gpu().linear_weight_gradient(weight);
    Workbench host(false, DType::f64, storage);
    const LinearGelu exact = make(LinearGelu{}, host, {64, 32, 96});
    host.backend().linear_gelu(exact);
    const LinearGeluGradient exact_backward = make(LinearGeluGradient{}, host, {64, 32, 96});
    host.backend().linear_gelu_gradient(exact_backward);
    const LinearWeightGradient exact_weight = make(LinearWeightGradient{}, host, {64, 32, 96});
    host.backend().linear_weight_gradient(exact_weight);
    EXPECT_LE(relative_error(bench.read(forward.gelu_out), host.read(exact.gelu_out)), 0.01);
    EXPECT_LE(relative_error(bench.read(backward.dfc1_out), host.read(exact_backward.dfc1_out)),
              0.01);
    EXPECT_LE(relative_error(bench.read(weight.dweight), host.read(exact_weight.dweight)), 1e-5);
    EXPECT_LE(relative_error(bench.read(weight.dbias), host.read(exact_weight.dbias)), 1e-5);
  }
}

TEST(Forms, WeightGradientsAddInTheirOwnType) {
  gpu().reserve_workspace(kWorkspace);
  for (const DType storage : {DType::bf16, DType::f16}) {
    Workbench bench(true, storage, storage), host(false, DType::f64, storage);
    LinearWeightGradient weight = make(LinearWeightGradient{}, bench, {64, 32, 96});
    LinearWeightGradient exact = make(LinearWeightGradient{}, host, {64, 32, 96});
    const std::vector<double> start(96 * 32, 0.5);
    weight.dweight = bench.given({96, 32}, start);
    exact.dweight = host.given({96, 32}, start);
    gpu().linear_weight_gradient(weight);
    host.backend().linear_weight_gradient(exact);
    EXPECT_EQ(weight.dweight.dtype, storage);
    EXPECT_LE(relative_error(bench.read(weight.dweight), host.read(exact.dweight)), 0.01);
    EXPECT_LE(relative_error(bench.read(weight.dbias), host.read(exact.dbias)), 1e-5);
  }
}

TEST(Forms, ShapesAndTypesThatDoNotMeetAreRefused) {
  gpu().reserve_workspace(kWorkspace);
  Workbench bench(true, DType::bf16, DType::bf16);
  const LinearGelu forward = make(LinearGelu{}, bench, {16, 8, 24});
  LinearGelu args = forward;
  args.gelu_out = args.fc1_out;
  EXPECT_THROW(gpu().linear_gelu(args), InternalError);
  args = forward;
  args.bias = {};
  EXPECT_THROW(gpu().linear_gelu(args), InternalError);
  args = forward;
  args.x = args.x.rows(0, 15);
  EXPECT_THROW(gpu().linear_gelu(args), InternalError);
  const LinearGeluGradient backward = make(LinearGeluGradient{}, bench, {16, 8, 24});
  LinearGeluGradient gradient = backward;
  gradient.dfc1_out = gradient.fc1_out;
  EXPECT_THROW(gpu().linear_gelu_gradient(gradient), InternalError);
  gradient = backward;
  gradient.dbias = bench.given({24}, std::vector<double>(24, 0.0));
  EXPECT_THROW(gpu().linear_gelu_gradient(gradient), InternalError);
  const LinearWeightGradient both = make(LinearWeightGradient{}, bench, {16, 8, 24});
  LinearWeightGradient weight = both;
  weight.x = weight.x.rows(0, 15);
  EXPECT_THROW(gpu().linear_weight_gradient(weight), InternalError);
  weight = both;
  weight.dbias = {};
  EXPECT_THROW(gpu().linear_weight_gradient(weight), InternalError);
  weight = both;
  weight.dweight = bench.given({8, 24}, std::vector<double>(24 * 8, 0.0));
  EXPECT_THROW(gpu().linear_weight_gradient(weight), InternalError);
}

// Also where cuBLASLt would not need it: whether it does depends on timing.
TEST(Forms, TheWeightGradientNeedsItsWorkspace) {
  const std::size_t bytes = cuda::kGemmWorkspace + cuda::bias_gradient_workspace(24);
  const device::Buffer workspace = gpu().allocate(bytes, "a test");
  const cuda::Context small{.stream = gpu().stream(),
                            .workspace = static_cast<std::byte*>(workspace.get()),
                            .workspace_bytes = bytes - 1,
                            .sms = 16};
  Workbench bench(true, DType::bf16, DType::bf16);
  const LinearWeightGradient args = make(LinearWeightGradient{}, bench, {16, 8, 24});
  for (const Fusion fusion : {Fusion::always, Fusion::never}) {
    GemmRunner runner("", GemmChoice::heuristic, fusion);
    EXPECT_THROW(runner.linear_weight_gradient(args, small), InternalError);
  }
}

}  // namespace
}  // namespace trireme::kernels
