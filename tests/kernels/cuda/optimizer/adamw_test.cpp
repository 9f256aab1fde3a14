#include "../workbench.hpp"

namespace trireme::kernels {
namespace {

// Bounds of ranges that begin and end within blocks' chunks, at their ends, and twice at a
// place.
const std::vector<std::int64_t> kAdamwBounds = {0, 3, 40, 40, 50, 8192, 9000, 16384, 16390, 20001};

// Elements first .. first + size - 1 of a state, so that pointers need not be aligned.
struct State {
  Tensor weight, gradient, m, v;

  State(Workbench& bench, std::int64_t size)
      : weight(bench.wide_random({size}, 1)),
        gradient(bench.wide_random({size}, 2)),
        m(bench.wide_random({size}, 3, 0.1)),
        v(bench.wide_given({size}, squares(size))) {}

  static std::vector<double> squares(std::int64_t size) {
    std::vector<double> values = random_values(size, 4, DType::f32);
    for (double& value : values) value = 1e-3 * value * value;
    return rounded(values, DType::f32);
  }

  AdamW step(std::int64_t first, const IndexRanges& decayed) const {
    const std::int64_t size = weight.size() - first;
    return {.weight = weight.rows(first, size),
            .gradient = gradient.rows(first, size),
            .m = m.rows(first, size),
            .v = v.rows(first, size),
            .learning_rate = 1e-2,
            .weight_decay = 0.1,
            .gradient_scale = 0.7,
            .step = 3,
            .decayed = decayed};
  }
};

TEST(AdamW, AgreesWithTheHost) {
  for (const std::int64_t size : {1, 7, 4096, 8193, 30005}) {
    for (const std::int64_t first : {0, 1, 4}) {
      if (first >= size) continue;
      for (const bool ranges : {false, true}) {
        expect_as_on_host(fmt::format("adamw of {} from {}", size, first), DType::f32,
                          [&](Workbench& bench) -> std::vector<Output> {
                            const State state(bench, size);
                            IndexRanges decayed;
                            if (ranges)
                              decayed = {bench.bounds(kAdamwBounds),
                                         static_cast<std::int64_t>(kAdamwBounds.size())};
                            bench.backend().adamw(state.step(first, decayed));
                            AdamW with_l2 = state.step(first, decayed);
                            with_l2.decay_in_gradient = true;
                            bench.backend().adamw(with_l2);
                            return {{"weight", state.weight}, {"m", state.m}, {"v", state.v}};
                          });
      }
    }
  }
}

TEST(AdamW, RoundsACopy) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t first : {0, 1, 4}) {
      constexpr std::int64_t kSize = 8205;
      Workbench bench(true, dtype, dtype);
      const State state(bench, kSize);
      const Tensor copy = bench.given({kSize}, std::vector<double>(kSize, 0.5));
      AdamW args = state.step(first, {});
      args.copy = copy.rows(first, kSize - first);
      gpu().adamw(args);
      std::vector<double> expected = rounded(bench.read(state.weight), dtype);
      std::fill(expected.begin(), expected.begin() + first, 0.5);
      EXPECT_EQ(bench.read(copy), expected) << name_of(dtype) << " from " << first;
    }
  }
}

TEST(SquaredSum, AgreesWithTheHost) {
  for (const std::int64_t size : {1, 7, 4096, 8193, 30005, 10'000'001}) {
    for (const std::int64_t first : {0, 1}) {
      if (first >= size) continue;
      for (const bool ranges : {false, true}) {
        expect_as_on_host(
            fmt::format("squared sum of {} from {}", size, first), DType::f32,
            [&](Workbench& bench) -> std::vector<Output> {
              const Tensor x = bench.wide_random({size}, 1), out = bench.number(2.0);
              IndexRanges counted;
              if (ranges)
                counted = {bench.bounds(kAdamwBounds),
                           static_cast<std::int64_t>(kAdamwBounds.size())};
              bench.backend().squared_sum(
                  {.x = x.rows(first, size - first), .out = out, .counted = counted});
              return {{"sum", out}};
            },
            1e-13);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
