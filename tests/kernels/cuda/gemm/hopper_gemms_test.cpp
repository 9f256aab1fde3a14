// The own GEMM algorithms for Hopper against the host, whatever the timing would choose.
#include "kernels/cuda/gemm/hopper/hopper_gemms.hpp"

#include "../workbench.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels {
namespace {

using cuda::Epilogue;
using cuda::GemmProblem;
using cuda::HopperGemms;
using cuda::is_own;
using cuda::Operands;

/// As in forms_test.cpp.
constexpr double kFloor = 6e-6;

struct Sizes {
  std::int64_t m, n, k;
};
// Tiles of 256 x 192 and steps of 64: whole ones, parts of them, several of each, and so many steps
// that a weight gradient is split.
constexpr Sizes kSizes[] = {{256, 384, 128}, {136, 72, 200}, {1000, 776, 520}, {264, 392, 4104}};

class OwnGemms : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (own_.candidates({.m = 8,
                         .n = 8,
                         .k = 8,
                         .transpose_b = true,
                         .operands = DType::bf16,
                         .result = DType::bf16})
            .empty())
      GTEST_SKIP() << "GPU 0 is not of compute capability 9.0";
  }

  /// Runs the own kernel for `gemm`, which there has to be.
  void run(const Gemm& gemm, Epilogue epilogue, const Tensor& aux = {}, const Tensor& sums = {},
           const Tensor& out = {}) {
    GemmProblem problem = cuda::problem_of(gemm);
    problem.epilogue = epilogue;
    Operands operands = cuda::operands_of(gemm);
    operands.aux = aux.data;
    operands.vector = static_cast<float*>(sums.data);
    if (out) operands.c = out.data;
    ASSERT_EQ(own_.candidates(problem).size(), 1u) << to_string(problem);
    own_.run(problem, operands, context_);
  }

  /// Compares what `make_and_run(bench, sizes, on_gpu)` writes.
  template <typename Function>
  void expect_right(const char* title, const Function& make_and_run) {
    for (const Sizes& sizes : kSizes)
      expect_as_on_host(
          fmt::format("{} {}x{}x{}", title, sizes.m, sizes.n, sizes.k), GetParam(),
          [&](Workbench& bench) { return make_and_run(bench, sizes, &bench.backend() == &gpu()); },
          kFloor);
  }

  HopperGemms own_;
  const device::Buffer workspace_ = gpu().allocate(cuda::kGemmWorkspace, "a test");
  const cuda::Context context_{.stream = gpu().stream(),
                               .workspace = static_cast<std::byte*>(workspace_.get()),
                               .workspace_bytes = cuda::kGemmWorkspace};
};

TEST_P(OwnGemms, ForwardMatchesTheHost) {
  for (const bool bias : {false, true})
    expect_right("forward", [&](Workbench& bench, const Sizes& sizes, bool on_gpu) {
      const auto [m, n, k] = sizes;
      const Gemm gemm{.a = bench.random({m, k}, 1),
                      .b = bench.random({n, k}, 2, 0.1),
                      .c = bench.poisoned({m, n}),
                      .transpose_b = true,
                      .bias = bias ? bench.random({n}, 3) : Tensor{}};
      on_gpu ? run(gemm, Epilogue::none) : bench.backend().gemm(gemm);
      return std::vector<Output>{{"c", gemm.c}};
    });
}

TEST_P(OwnGemms, ForwardWithGeluMatchesTheHost) {
  for (const bool exact : {false, true})
    expect_right(
        exact ? "exact gelu" : "gelu", [&](Workbench& bench, const Sizes& sizes, bool on_gpu) {
          const auto [m, n, k] = sizes;
          const LinearGelu args{.x = bench.random({m, k}, 1),
                                .weight = bench.random({n, k}, 2, 0.1),
                                .bias = bench.random({n}, 3),
                                .fc1_out = bench.poisoned({m, n}),
                                .gelu_out = bench.poisoned({m, n}),
                                .function = exact ? Activation::gelu : Activation::gelu_tanh};
          if (on_gpu)
            run({.a = args.x,
                 .b = args.weight,
                 .c = args.gelu_out,
                 .transpose_b = true,
                 .bias = args.bias},
                exact ? Epilogue::exact_gelu : Epilogue::gelu, args.fc1_out);
          else
            bench.backend().linear_gelu(args);
          return std::vector<Output>{{"fc1_out", args.fc1_out}, {"gelu_out", args.gelu_out}};
        });
}

TEST_P(OwnGemms, ForwardWithSwigluMatchesTheHost) {
  expect_right("swiglu", [&](Workbench& bench, const Sizes& sizes, bool on_gpu) {
    const auto [m, n, k] = sizes;
    const LinearGated args{.x = bench.random({m, k}, 1),
                           .weight = bench.random({2 * n, k}, 2, 0.3),
                           .fc1_out = bench.poisoned({m, 2 * n}),
                           .gated_out = bench.poisoned({m, n})};
    if (on_gpu) {
      run({.a = args.x, .b = args.weight, .c = args.fc1_out, .transpose_b = true}, Epilogue::gated,
          args.gated_out);
      const Tensor separate = bench.poisoned({m, n});
      bench.backend().gated_forward({.x = args.fc1_out, .out = separate});
      EXPECT_EQ(bench.read(args.gated_out), bench.read(separate)) << "not what fc1_out gives";
    } else {
      bench.backend().linear_gated(args);
    }
    return std::vector<Output>{{"fc1_out", args.fc1_out}, {"gated_out", args.gated_out}};
  });
}

TEST_P(OwnGemms, InputGradientTimesGelusMatchesTheHost) {
  for (const bool exact : {false, true})
    expect_right(exact ? "exact gelu gradient" : "gelu gradient",
                 [&](Workbench& bench, const Sizes& sizes, bool on_gpu) {
                   const auto [m, n, k] = sizes;
                   const LinearGeluGradient args{
                       .dy = bench.random({m, k}, 1),
                       .weight = bench.random({k, n}, 2, 0.1),
                       .fc1_out = bench.random({m, n}, 3),
                       .dfc1_out = bench.poisoned({m, n}),
                       .dbias = bench.wide_random({n}, 4),
                       .function = exact ? Activation::gelu : Activation::gelu_tanh};
                   if (on_gpu)
                     run({.a = args.dy, .b = args.weight, .c = args.dfc1_out},
                         exact ? Epilogue::exact_gelu_gradient : Epilogue::gelu_gradient,
                         args.fc1_out, args.dbias);
                   else
                     bench.backend().linear_gelu_gradient(args);
                   return std::vector<Output>{{"dfc1_out", args.dfc1_out}, {"dbias", args.dbias}};
                 });
}

TEST_P(OwnGemms, InputGradientThroughSwigluMatchesTheHost) {
  expect_right("swiglu gradient", [&](Workbench& bench, const Sizes& sizes, bool on_gpu) {
    const auto [m, n, k] = sizes;
    const LinearGatedGradient args{.dy = bench.random({m, k}, 1),
                                   .weight = bench.random({k, n}, 2, 0.1),
                                   .fc1_out = bench.random({m, 2 * n}, 3),
                                   .dout = bench.poisoned({m, n}),
                                   .dfc1_out = bench.poisoned({m, 2 * n})};
    if (on_gpu)
      run({.a = args.dy, .b = args.weight, .c = args.dout}, Epilogue::gated_gradient, args.fc1_out,
          {}, args.dfc1_out);
    else
      bench.backend().linear_gated_gradient(args);
    return std::vector<Output>{{"dfc1_out", args.dfc1_out}};
  });
}

TEST_P(OwnGemms, WeightGradientsMatchTheHost) {
  for (const bool bias : {false, true})
    expect_right("weight gradient", [&](Workbench& bench, const Sizes& sizes, bool on_gpu) {
      const auto [m, n, k] = sizes;
      const LinearWeightGradient args{.x = bench.random({k, n}, 1),
                                      .dy = bench.random({k, m}, 2),
                                      .dweight = bench.wide_random({m, n}, 3),
                                      .dbias = bench.wide_random({m}, 4)};
      const Gemm gemm{
          .a = args.dy, .b = args.x, .c = args.dweight, .transpose_a = true, .beta = 1.0};
      if (on_gpu)
        run(gemm, bias ? Epilogue::bias_gradient : Epilogue::none, {}, args.dbias);
      else if (bias)
        bench.backend().linear_weight_gradient(args);
      else
        bench.backend().gemm(gemm);
      return std::vector<Output>{{"dweight", args.dweight}, {"dbias", args.dbias}};
    });
}

TEST_P(OwnGemms, AreCandidatesOnlyForWhatTheyCanDo) {
  const GemmProblem forward{
      .m = 64, .n = 64, .k = 64, .transpose_b = true, .operands = GetParam(), .result = GetParam()};
  ASSERT_EQ(own_.candidates(forward).size(), 1u);
  const cuda::Algorithm algorithm = own_.candidates(forward).front();
  EXPECT_TRUE(is_own(algorithm));
  EXPECT_TRUE(own_.usable(forward, algorithm));
  cuda::Algorithm newer = algorithm;
  ++newer[0];
  EXPECT_TRUE(is_own(newer));
  EXPECT_FALSE(own_.usable(forward, newer)) << "of another version";
  EXPECT_FALSE(is_own(cuda::kSeparate));
  const auto expect_none = [&](auto change) {
    GemmProblem problem = forward;
    change(problem);
    EXPECT_TRUE(own_.candidates(problem).empty()) << to_string(problem);
    EXPECT_FALSE(own_.usable(problem, algorithm)) << to_string(problem);
  };
  expect_none([](GemmProblem& it) { it.n = 63; });
  expect_none([](GemmProblem& it) { it.k = 60; });
  expect_none([](GemmProblem& it) { it.k = 0; });
  expect_none([](GemmProblem& it) { it.alignment_b = 8; });
  expect_none([](GemmProblem& it) { it.operands = it.result = DType::f32; });
  expect_none([](GemmProblem& it) { it.result = DType::f32; });
  expect_none([](GemmProblem& it) { it.adds = true; });
  expect_none([](GemmProblem& it) { it.transpose_a = true; });
  expect_none([](GemmProblem& it) { it.transpose_b = false; });
  GemmProblem gated = forward;
  gated.epilogue = Epilogue::gated;
  EXPECT_EQ(own_.candidates(gated).size(), 1u);
  gated.bias = true;
  EXPECT_TRUE(own_.candidates(gated).empty()) << to_string(gated);
  gated.bias = false;
  gated.n = 72;
  EXPECT_TRUE(own_.candidates(gated).empty()) << "halves of 36 columns";
}

INSTANTIATE_TEST_SUITE_P(Types, OwnGemms, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// A file of plans may come from a program with other kernels of its own.
TEST(OwnAlgorithms, AreNoneOfTheLibrarys) {
  const cuda::CublasLt library;
  const GemmProblem problem{.m = 64,
                            .n = 64,
                            .k = 64,
                            .transpose_b = true,
                            .operands = DType::bf16,
                            .result = DType::bf16};
  const cuda::Matmul matmul(library, problem);
  for (const cuda::Algorithm& candidate : matmul.candidates()) EXPECT_FALSE(is_own(candidate));
  for (const cuda::Algorithm& own : HopperGemms().candidates(problem))
    EXPECT_FALSE(matmul.usable(own));
}

}  // namespace
}  // namespace trireme::kernels
