// GEMMs that take the parts of their rows as they come:
// bit for bit what they compute otherwise, or what they do when the parts have come before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "../workbench.hpp"
#include "core/cuda/check.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels {
namespace {

using trireme::cuda::raise_flag;

constexpr int kMaxParts = 4;

struct Sizes {
  std::int64_t m, n, k;
};
// Whole tiles in each part, several and with a rest of columns; and rows that no own kernel has in
// parts.
constexpr Sizes kSizes[] = {{2048, 384, 128}, {4096, 776, 520}, {1000, 392, 264}};

class RowParts : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    std::vector<std::uint32_t> words(2 * kMaxParts, 0);
    std::fill_n(words.begin(), kMaxParts, epoch_);
    gpu().upload(flags_.get(), words.data(), words.size() * sizeof words[0]);
  }

  std::uint32_t* flags() { return static_cast<std::uint32_t*>(flags_.get()); }
  std::vector<std::uint32_t> words() {
    std::vector<std::uint32_t> words(2 * kMaxParts);
    gpu().download(words.data(), flags_.get(), words.size() * sizeof words[0]);
    return words;
  }
  cuda::Context context() const {
    return {.stream = gpu().stream(),
            .workspace = static_cast<std::byte*>(workspace_.get()),
            .workspace_bytes = kWorkspace,
            .sms = 1};
  }

  /// Part `part` of `parts` of the rows of `matrix`.
  static Tensor part_of(const Tensor& matrix, int parts, int part) {
    const std::int64_t rows = matrix.shape[0] / parts;
    return matrix.rows(part * rows, rows);
  }

  /// Runs `run(x, arrivals)` while the parts of x but `own` are still to come, from another stream.
  template <typename Run>
  void run_as_parts_come(const Tensor& x, const Tensor& late, int parts, int own, const Run& run) {
    const PartArrivals arrivals{.flags = flags(), .epoch = ++epoch_, .parts = parts, .own = own};
    const Tensor own_part = part_of(x, parts, own);
    gpu().zero(late);
    gpu().copy(part_of(late, parts, own).data, own_part.data, own_part.bytes());
    gpu().synchronize();  // before the other stream writes there
    run(late, arrivals);
    trireme::cuda::Stream other(/*high_priority=*/true);
    for (int step = 1; step < parts; ++step) {
      const Tensor from = part_of(x, parts, (own + step) % parts);
      TRIREME_CUDA(cudaMemcpyAsync(part_of(late, parts, (own + step) % parts).data, from.data,
                                   from.bytes(), cudaMemcpyDefault, other.get()));
      raise_flag(other.get(), flags() + (own + step) % parts, epoch_);
    }
    gpu().synchronize();
  }

  static constexpr std::size_t kWorkspace = cuda::kGemmWorkspace + (std::size_t{16} << 20);
  const device::Buffer flags_ = gpu().allocate(2 * kMaxParts * sizeof(std::uint32_t), "a test");
  const device::Buffer workspace_ = gpu().allocate(kWorkspace, "a test");
  cuda::GemmRunner runner_{"", GemmChoice::heuristic};
  std::uint32_t epoch_ = 0xFFFFFFFD;  // epochs wrap around
};

/// The elements of `found` and `expected` must be near: another kernel may sum in another
/// order.
void expect_near(Workbench& bench, const Tensor& found, const Tensor& expected,
                 const std::string& what) {
  const std::vector<double> a = bench.read(found), b = bench.read(expected);
  ASSERT_EQ(a.size(), b.size());
  double largest = 0.0, difference = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_FALSE(std::isnan(a[i])) << what << " [" << i << "]";
    largest = std::max(largest, std::abs(b[i]));
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  EXPECT_LE(difference, 0.01 * largest) << what;
  EXPECT_GT(largest, 0.0) << what;
}

TEST_P(RowParts, AGemmTakesThemAsTheyCome) {
  for (const auto& [m, n, k] : kSizes)
    for (const int parts : {2, 4})
      for (const bool transposed : {true, false}) {
        Workbench bench(/*on_gpu=*/true, GetParam(), GetParam());
        const Tensor x = bench.random({m, k}, 1), late = bench.poisoned({m, k});
        const Tensor w = transposed ? bench.random({n, k}, 2) : bench.random({k, n}, 2);
        const Tensor whole = bench.poisoned({m, n}), c = bench.poisoned({m, n});
        runner_.gemm({.a = x, .b = w, .c = whole, .transpose_b = transposed}, context());
        for (int own = 0; own < parts; own += parts - 1) {
          run_as_parts_come(
              x, late, parts, own, [&](const Tensor& a, const PartArrivals& arrivals) {
                runner_.gemm(
                    {.a = a, .b = w, .c = c, .transpose_b = transposed, .arrivals = arrivals},
                    context());
              });
          expect_near(bench, c, whole, fmt::format("{}x{}x{}, part {} of {}", m, n, k, own, parts));
        }
      }
}

TEST_P(RowParts, AnMlpTakesThemAsTheyCome) {
  for (const auto& [m, n, k] : kSizes) {
    Workbench bench(/*on_gpu=*/true, GetParam(), GetParam());
    const std::string what = fmt::format("{}x{}x{}", m, n, k);
    const Tensor x = bench.random({m, k}, 1), late = bench.poisoned({m, k});
    LinearGelu forward{.x = x,
                       .weight = bench.random({n, k}, 2),
                       .bias = bench.random({n}, 3),
                       .fc1_out = bench.poisoned({m, n}),
                       .gelu_out = bench.poisoned({m, n})};
    runner_.linear_gelu(forward, context());
    const Tensor fc1_out = forward.fc1_out, gelu_out = forward.gelu_out;
    forward.fc1_out = bench.poisoned({m, n});
    forward.gelu_out = bench.poisoned({m, n});
    run_as_parts_come(x, late, 2, 1, [&](const Tensor& a, const PartArrivals& arrivals) {
      forward.x = a;
      forward.arrivals = arrivals;
      runner_.linear_gelu(forward, context());
    });
    expect_near(bench, forward.fc1_out, fc1_out, what);
    expect_near(bench, forward.gelu_out, gelu_out, what);

    LinearGeluGradient backward{.dy = x,
                                .weight = bench.random({k, n}, 4),
                                .fc1_out = fc1_out,
                                .dfc1_out = bench.poisoned({m, n}),
                                .dbias = bench.wide_given({n}, std::vector<double>(n))};
    runner_.linear_gelu_gradient(backward, context());
    const Tensor dfc1_out = backward.dfc1_out, dbias = backward.dbias;
    backward.dfc1_out = bench.poisoned({m, n});
    backward.dbias = bench.wide_given({n}, std::vector<double>(n));
    run_as_parts_come(x, late, 2, 0, [&](const Tensor& a, const PartArrivals& arrivals) {
      backward.dy = a;
      backward.arrivals = arrivals;
      runner_.linear_gelu_gradient(backward, context());
    });
    expect_near(bench, backward.dfc1_out, dfc1_out, what);
    expect_near(bench, backward.dbias, dbias, what);

    // About as many tiles as the others have: the copies here, unlike those from other GPUs, need
    // SMs on which no block waits.
    const std::int64_t gates = n / 16 * 8 + 8;
    LinearGated gate{.x = x,
                     .weight = bench.random({2 * gates, k}, 6),
                     .fc1_out = bench.poisoned({m, 2 * gates}),
                     .gated_out = bench.poisoned({m, gates})};
    for (const Activation function : {Activation::silu, Activation::gelu_tanh}) {
      gate.function = function;
      gate.x = x;
      gate.arrivals = {};
      runner_.linear_gated(gate, context());
      const Tensor gate_up = gate.fc1_out, gated_out = gate.gated_out;
      gate.fc1_out = bench.poisoned({m, 2 * gates});
      gate.gated_out = bench.poisoned({m, gates});
      run_as_parts_come(x, late, 2, 0, [&](const Tensor& a, const PartArrivals& arrivals) {
        gate.x = a;
        gate.arrivals = arrivals;
        runner_.linear_gated(gate, context());
      });
      expect_near(bench, gate.fc1_out, gate_up, what);
      expect_near(bench, gate.gated_out, gated_out, what);
    }

    LinearGatedGradient gated{.dy = x,
                              .weight = bench.random({k, n}, 4),
                              .fc1_out = bench.random({m, 2 * n}, 5),
                              .dout = bench.poisoned({m, n}),
                              .dfc1_out = bench.poisoned({m, 2 * n})};
    runner_.linear_gated_gradient(gated, context());
    const Tensor through_gate = gated.dfc1_out;
    gated.dfc1_out = bench.poisoned({m, 2 * n});
    run_as_parts_come(x, late, 2, 1, [&](const Tensor& a, const PartArrivals& arrivals) {
      gated.dy = a;
      gated.arrivals = arrivals;
      runner_.linear_gated_gradient(gated, context());
    });
    expect_near(bench, gated.dfc1_out, through_gate, what);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowParts, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace trireme::kernels
