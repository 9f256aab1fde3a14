#include "kernels/cuda/gemm/gemm_runner.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "device_testing.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels {
namespace {

/// One GEMM to test, and its operands.
struct Case {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  double beta = 0.0;
  bool bias = false;
  DType operands = DType::bf16;
  DType result = DType::bf16;

  Shape shape_a() const { return transpose_a ? Shape{k, m} : Shape{m, k}; }
  Shape shape_b() const { return transpose_b ? Shape{n, k} : Shape{k, n}; }
  std::vector<double> a() const { return random_values(m * k, 1, operands); }
  std::vector<double> b() const { return random_values(k * n, 2, operands); }
  std::vector<double> c() const { return random_values(m * n, 3, result); }
  std::vector<double> bias_values() const { return random_values(n, 4, operands); }

  std::string name() const {
    return fmt::format("{}x{}x{} {}{} {} to {}{}{}", m, n, k, transpose_a ? 'T' : 'N',
                       transpose_b ? 'T' : 'N', name_of(operands), name_of(result),
                       beta != 0.0 ? " add" : "", bias ? " bias" : "");
  }

  /// The host's GEMM in T.
  template <typename T>
  std::vector<double> on_host() const {
    const auto as = [](const std::vector<double>& values) {
      return std::vector<T>(values.begin(), values.end());
    };
    std::vector<T> x = as(a()), y = as(b()), z = as(c()), w = as(bias_values());
    const auto tensor = [](std::vector<T>& values, Shape shape) {
      return Tensor{values.data(), dtype_of<T>, shape};
    };
    host::gemm({.a = tensor(x, shape_a()),
                .b = tensor(y, shape_b()),
                .c = tensor(z, {m, n}),
                .transpose_a = transpose_a,
                .transpose_b = transpose_b,
                .beta = beta,
                .bias = bias ? tensor(w, {n}) : Tensor{}});
    return {z.begin(), z.end()};
  }

  /// What `multiply` makes of it on the GPU.
  template <typename Multiply>
  std::vector<double> on_gpu(const Multiply& multiply) const {
    const OnGpu x(shape_a(), operands, a()), y(shape_b(), operands, b());
    const OnGpu w({n}, operands, bias_values());
    const OnGpu z = beta == 0.0 ? OnGpu({m, n}, result) : OnGpu({m, n}, result, c());
    multiply(Gemm{.a = x.tensor(),
                  .b = y.tensor(),
                  .c = z.tensor(),
                  .transpose_a = transpose_a,
                  .transpose_b = transpose_b,
                  .beta = beta,
                  .bias = bias ? w.tensor() : Tensor{}});
    return z.read();
  }

  /// The relative error allowed in any case: tensor cores truncate as they add up.
  double floor() const { return 2e-6 + (operands == DType::f32 ? 0.0 : 1e-8 * k); }
};

const auto kBackend = [](const Gemm& args) { gpu().gemm(args); };

template <typename Multiply>
void expect_right(const Case& problem, const Multiply& multiply) {
  const std::vector<double> actual = problem.on_gpu(multiply);
  expect_as_near(problem.name(), actual, rounded(problem.on_host<float>(), problem.result),
                 problem.on_host<double>(), problem.floor());
  EXPECT_EQ(problem.on_gpu(multiply), actual) << problem.name() << ": other bits the second time";
}

template <typename Function>
void for_each_kind(Case problem, const Function& function) {
  for (const DType operands : {DType::f32, DType::bf16, DType::f16})
    for (const bool weight_gradient : {false, true})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          const DType result = weight_gradient ? accumulation_type(operands) : operands;
          if (weight_gradient && (result == operands || !ta)) continue;
          problem.operands = operands;
          problem.result = result;
          problem.transpose_a = ta;
          problem.transpose_b = tb;
          problem.beta = 0.0;
          problem.bias = false;
          function(problem);
          problem.beta = 1.0;
          function(problem);
          problem.beta = 0.0;
          problem.bias = !weight_gradient;
          if (problem.bias) function(problem);
        }
}

TEST(CudaGemm, MatchesTheHostInDouble) {
  for (const Case& size : {Case{1, 1, 1}, Case{7, 5, 3}, Case{1, 600, 33}, Case{300, 2, 17},
                           Case{64, 48, 6}, Case{129, 257, 65}, Case{256, 384, 128}})
    for_each_kind(size, [](const Case& problem) { expect_right(problem, kBackend); });
}

// Few tiles and many terms: where cuBLASLt cuts k into parts.
TEST(CudaGemm, SumsOfManyTermsAreTakenInFp32) {
  for (const DType result : {DType::bf16, DType::f32})
    expect_right(Case{96, 64, 8192, /*transpose_a=*/true, false, 1.0, false, DType::bf16, result},
                 kBackend);
}

TEST(CudaGemm, ThePlainKernelMatchesTheHostToo) {
  const cuda::Context context{.stream = gpu().stream(), .sms = 1};
  for (const Case& size : {Case{1, 1, 1}, Case{35, 17, 19}, Case{16, 16, 16}, Case{33, 64, 100}})
    for_each_kind(size, [&](const Case& problem) {
      expect_right(problem, [&](const Gemm& args) { cuda::gemm_plain(args, context); });
    });
}

TEST(CudaGemm, TakesOperandsAtAnyElement) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool bias : {false, true}) {
      const Case problem{40, 24, 16, false, true, 0.0, bias, dtype, dtype};
      // One element further on than allocated.
      const auto shifted = [&](std::vector<double> values) {
        values.insert(values.begin(), 7.0);
        return OnGpu({static_cast<std::int64_t>(values.size())}, dtype, values);
      };
      const OnGpu a = shifted(problem.a()), b = shifted(problem.b());
      const OnGpu c = shifted(problem.c()), w = shifted(problem.bias_values());
      const auto view = [](const OnGpu& memory, Shape shape) {
        return memory.tensor().rows(1, shape.size()).view(shape);
      };
      gpu().gemm({.a = view(a, problem.shape_a()),
                  .b = view(b, problem.shape_b()),
                  .c = view(c, {problem.m, problem.n}),
                  .transpose_b = true,
                  .bias = bias ? view(w, {problem.n}) : Tensor{}});
      std::vector<double> actual = c.read();
      EXPECT_EQ(actual.front(), 7.0);
      actual.erase(actual.begin());
      expect_as_near(problem.name(), actual, rounded(problem.on_host<float>(), dtype),
                     problem.on_host<double>(), problem.floor());
    }
}

TEST(CudaGemm, NoRowsAreNoWork) {
  const OnGpu b({3, 5}, DType::bf16);
  gpu().gemm(
      {.a = {nullptr, DType::bf16, {0, 3}}, .b = b.tensor(), .c = {nullptr, DType::bf16, {0, 5}}});
  gpu().synchronize();
}

TEST(CudaGemm, RefusesShapesAndTypesThatDoNotMeet) {
  const OnGpu a({2, 3}, DType::bf16), b({4, 5}, DType::bf16), c({2, 5}, DType::bf16);
  try {
    gpu().gemm({a.tensor(), b.tensor(), c.tensor()});
    FAIL() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("gemm: b is [4, 5], expected 3 rows of 5"),
              std::string::npos)
        << error.what();
  }
  const OnGpu half({3, 5}, DType::f16), single({3, 5}, DType::f32), bias({5}, DType::bf16);
  EXPECT_THROW(gpu().gemm({a.tensor(), half.tensor(), c.tensor()}), InternalError);
  EXPECT_THROW(gpu().gemm({.a = a.tensor(),
                           .b = b.tensor().rows(0, 3),
                           .c = c.tensor(),
                           .beta = 1.0,
                           .bias = bias.tensor()}),
               InternalError);
  EXPECT_THROW(gpu().gemm({.a = a.tensor(),
                           .b = b.tensor().rows(0, 3),
                           .c = single.tensor().rows(0, 2),
                           .bias = bias.tensor()}),
               InternalError);
}

/// A runner with its own workspace.
class CudaGemmRunner : public ::testing::Test {
 protected:
  CudaGemmRunner() { std::filesystem::remove(path_); }
  ~CudaGemmRunner() override { std::filesystem::remove(path_); }

  std::vector<double> run(cuda::GemmRunner& runner, const Case& problem) const {
    return problem.on_gpu([&](const Gemm& args) { runner.gemm(args, context_); });
  }

  const std::string path_ =
      ::testing::TempDir() + "gemm_cache_" + std::to_string(::getpid()) + ".txt";
  const device::Buffer workspace_ = gpu().allocate(cuda::kGemmWorkspace, "a test");
  const cuda::Context context_{.stream = gpu().stream(),
                               .workspace = static_cast<std::byte*>(workspace_.get()),
                               .workspace_bytes = cuda::kGemmWorkspace,
                               .sms = 1};
  const Case first_{512, 256, 1024, false, true, 0.0, true, DType::bf16, DType::bf16};
  const Case second_{256, 512, 512, true, false, 1.0, false, DType::bf16, DType::f32};
};

TEST_F(CudaGemmRunner, ChoicesAreKeptInMemoryAndInTheFile) {
  cuda::GemmRunner timing(path_);
  EXPECT_EQ(timing.timed_gemms(), 0);
  const std::vector<double> first = run(timing, first_), second = run(timing, second_);
  EXPECT_EQ(timing.timed_gemms(), 2);
  EXPECT_EQ(run(timing, first_), first);
  EXPECT_EQ(timing.timed_gemms(), 2);

  cuda::GemmRunner reading(path_);
  EXPECT_EQ(run(reading, first_), first);
  EXPECT_EQ(run(reading, second_), second);
  EXPECT_EQ(reading.timed_gemms(), 0);
}

TEST_F(CudaGemmRunner, ADamagedFileIsTimedAnew) {
  cuda::GemmRunner timing(path_);
  run(timing, first_);
  std::string line;
  std::getline(std::ifstream(path_), line);
  std::ofstream(path_) << "nonsense\n" << line.substr(0, line.size() - 1);
  cuda::GemmRunner again(path_);
  run(again, first_);
  EXPECT_EQ(again.timed_gemms(), 1);
  cuda::GemmRunner reading(path_);
  run(reading, first_);
  EXPECT_EQ(reading.timed_gemms(), 0);
}

TEST_F(CudaGemmRunner, TheFirstChoiceIsRightToo) {
  cuda::GemmRunner runner("", cuda::GemmChoice::heuristic);
  for (const Case& problem : {first_, second_})
    expect_right(problem, [&](const Gemm& args) { runner.gemm(args, context_); });
  EXPECT_EQ(runner.timed_gemms(), 0);
}

TEST_F(CudaGemmRunner, NeedsItsWorkspace) {
  cuda::Context small = context_;
  small.workspace_bytes = cuda::kGemmWorkspace - 1;
  cuda::GemmRunner runner("");
  EXPECT_THROW(first_.on_gpu([&](const Gemm& args) { runner.gemm(args, small); }), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
