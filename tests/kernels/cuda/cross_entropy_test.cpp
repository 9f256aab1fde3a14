#include "workbench.hpp"

namespace trireme::kernels {
namespace {

// What the hardware's exponential leaves in statistics of half-precision logits.
constexpr double kStatisticsFloor = 5e-6;

// Rows, columns of the shard, stored columns; at last more rows than blocks at a time.
struct Size {
  std::int64_t rows, columns, stored;
};
const Size kSizes[] = {{1, 1, 1},       {3, 5, 7},  {5, 40, 40},      {9, 50257, 50304},
                       {4, 2049, 2056}, {2, 0, 16}, {777, 1003, 1008}};

// Logits with poison in the padding columns.
std::vector<double> logits_of(const Size& size, DType dtype, std::uint64_t seed) {
  std::vector<double> logits = random_values(size.rows * size.stored, seed, dtype, 3.0);
  for (std::int64_t t = 0; t < size.rows; ++t)
    for (std::int64_t i = size.columns; i < size.stored; ++i)
      logits[t * size.stored + i] = std::numeric_limits<double>::quiet_NaN();
  return logits;
}

// Labels of this shard, of others and of no one.
std::vector<std::int32_t> labels_of(const Size& size, std::int64_t first_column) {
  std::vector<std::int32_t> labels(size.rows);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    labels[t] = static_cast<std::int32_t>(first_column + t * 7919 % (size.columns + 2) - 1);
    if (t % 4 == 2) labels[t] = -1;
  }
  return labels;
}

TEST(CrossEntropy, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes) {
    for (const Size& size : kSizes) {
      for (const std::int64_t first_column : {0, 1000}) {
        const std::vector<std::int32_t> labels = labels_of(size, first_column);
        if (size.columns > 0)
          expect_as_on_host(
              fmt::format("statistics of {} columns", size.columns), dtype,
              [&](Workbench& bench) -> std::vector<Output> {
                const Tensor max = bench.wide_poisoned({size.rows});
                const Tensor sum = bench.wide_poisoned({size.rows});
                const Tensor target = bench.wide_poisoned({size.rows});
                bench.backend().cross_entropy_statistics(
                    {.logits = bench.given({size.rows, size.stored}, logits_of(size, dtype, 1)),
                     .first_column = first_column,
                     .columns = size.columns,
                     .labels = bench.integers(labels),
                     .max = max,
                     .sum = sum,
                     .target = target});
                return {{"max", max}, {"sum", sum}, {"target", target}};
              },
              kStatisticsFloor);
        std::vector<double> max(size.rows), sum(size.rows);
        for (std::int64_t t = 0; t < size.rows; ++t) {
          max[t] = 10.0 + t;
          sum[t] = 2.0 + t;
        }
        expect_as_on_host(
            fmt::format("logit gradient of {} columns", size.columns), dtype,
            [&](Workbench& bench) -> std::vector<Output> {
              const Tensor logits =
                  bench.given({size.rows, size.stored}, logits_of(size, dtype, 1));
              bench.backend().cross_entropy_backward({.logits = logits,
                                                      .first_column = first_column,
                                                      .columns = size.columns,
                                                      .labels = bench.integers(labels),
                                                      .max = bench.wide_given({size.rows}, max),
                                                      .sum = bench.wide_given({size.rows}, sum),
                                                      .scale = 0.125});
              return {{"logits", logits}};
            });
      }
    }
  }
}

TEST(CrossEntropy, BothPassesFusedAgreeWithTheHost) {
  for (const DType dtype : kStorageTypes) {
    for (const Size& size : kSizes) {
      if (size.columns == 0) continue;
      const std::vector<std::int32_t> labels = labels_of(size, 0);
      expect_as_on_host(
          fmt::format("both passes over {} columns", size.columns), dtype,
          [&](Workbench& bench) -> std::vector<Output> {
            const Tensor logits = bench.given({size.rows, size.stored}, logits_of(size, dtype, 1));
            const Tensor max = bench.wide_poisoned({size.rows});
            const Tensor sum = bench.wide_poisoned({size.rows});
            const Tensor target = bench.wide_poisoned({size.rows});
            bench.backend().cross_entropy_statistics_backward(
                {.statistics = {.logits = logits,
                                .columns = size.columns,
                                .labels = bench.integers(labels),
                                .max = max,
                                .sum = sum,
                                .target = target},
                 .scale = 0.125});
            return {{"logits", logits}, {"max", max}, {"sum", sum}, {"target", target}};
          },
          kStatisticsFloor);
    }
  }
}

TEST(CrossEntropy, OfNoColumnsHasNoMass) {
  Workbench bench(true, DType::bf16, DType::bf16);
  const Tensor max = bench.wide_poisoned({2}), sum = bench.wide_poisoned({2});
  const Tensor target = bench.wide_poisoned({2});
  gpu().cross_entropy_statistics({.logits = bench.poisoned({2, 16}),
                                  .first_column = 100,
                                  .columns = 0,
                                  .labels = bench.integers({5, 100}),
                                  .max = max,
                                  .sum = sum,
                                  .target = target});
  const double none = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(bench.read(max), (std::vector<double>{none, none}));
  EXPECT_EQ(bench.read(sum), (std::vector<double>{0.0, 0.0}));
  EXPECT_EQ(bench.read(target), (std::vector<double>{0.0, 0.0}));
}

TEST(CrossEntropy, BearsLogitsOfMinusInfinity) {
  std::vector<double> logits(3 * 4096, -std::numeric_limits<double>::infinity());
  logits[5] = 1.0;
  logits[4096 + 4095] = 2.0;
  logits[2 * 4096] = logits[2 * 4096 + 3000] = -3.0;
  Workbench bench(true, DType::bf16, DType::bf16);
  const Tensor max = bench.wide_poisoned({3}), sum = bench.wide_poisoned({3});
  gpu().cross_entropy_statistics({.logits = bench.given({3, 4096}, logits),
                                  .columns = 4096,
                                  .labels = bench.integers({5, 4095, -1}),
                                  .max = max,
                                  .sum = sum,
                                  .target = bench.wide_poisoned({3})});
  EXPECT_EQ(bench.read(max), (std::vector<double>{1.0, 2.0, -3.0}));
  EXPECT_EQ(bench.read(sum), (std::vector<double>{1.0, 1.0, 2.0}));
}

TEST(CrossEntropy, TellsLogitsThatAreNotNumbers) {
  std::vector<double> logits(2 * 64, 0.0);
  logits[40] = std::numeric_limits<double>::quiet_NaN();
  logits[64 + 7] = std::numeric_limits<double>::infinity();
  Workbench bench(true, DType::bf16, DType::bf16);
  const Tensor sum = bench.wide_poisoned({2});
  gpu().cross_entropy_statistics({.logits = bench.given({2, 64}, logits),
                                  .columns = 64,
                                  .labels = bench.integers({0, 0}),
                                  .max = bench.wide_poisoned({2}),
                                  .sum = sum,
                                  .target = bench.wide_poisoned({2})});
  for (const double value : bench.read(sum)) EXPECT_TRUE(std::isnan(value));
}

TEST(CrossEntropy, RescalesToTheLargestMaximum) {
  const double none = -std::numeric_limits<double>::infinity();
  Workbench bench(true, DType::f32, DType::f32);
  const Tensor sum = bench.given({3}, {4.0, 0.0, 3.0});
  gpu().cross_entropy_rescale({.local_max = bench.given({3}, {1.0, none, none}),
                               .max = bench.given({3}, {1.0, 5.0, none}),
                               .sum = sum});
  EXPECT_EQ(bench.read(sum), (std::vector<double>{4.0, 0.0, 0.0}));
  const Tensor lower = bench.given({1}, {4.0});
  gpu().cross_entropy_rescale(
      {.local_max = bench.given({1}, {1.0}), .max = bench.given({1}, {3.0}), .sum = lower});
  EXPECT_NEAR(bench.read(lower)[0], 4.0 * std::exp(-2.0), 1e-6);
}

TEST(CrossEntropy, AddsTheLossOfTokensThatCount) {
  for (const std::int64_t rows : {1, 300, 70000}) {
    std::vector<std::int32_t> labels(rows);
    for (std::int64_t t = 0; t < rows; ++t) labels[t] = t % 3 == 1 ? -1 : 7;
    std::vector<double> sum = random_values(rows, 1, DType::f32);
    for (double& value : sum) value = std::exp(value);
    sum = rounded(sum, DType::f32);
    expect_as_on_host(
        fmt::format("loss of {} tokens", rows), DType::f32,
        [&](Workbench& bench) -> std::vector<Output> {
          const Tensor loss = bench.number(1.5);
          bench.backend().cross_entropy_loss({.labels = bench.integers(labels),
                                              .max = bench.wide_random({rows}, 2),
                                              .sum = bench.wide_given({rows}, sum),
                                              .target = bench.wide_random({rows}, 3),
                                              .loss = loss});
          return {{"loss", loss}};
        },
        1e-12);
  }
}

TEST(SelectLabels, ListsThoseThatCount) {
  for (const std::int64_t tokens : {1, 31, 1024, 1025, 5000, 32768})
    for (const int percent : {0, 15, 100}) {
      std::vector<std::int32_t> labels(tokens);
      std::int64_t count = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        labels[t] =
            philox_uniform(3, 0, t) * 100 < percent ? static_cast<std::int32_t>(t % 97) : -1;
        count += labels[t] >= 0;
      }
      const std::int64_t capacity = count + 5;
      std::vector<std::int32_t> rows(capacity, 7), selected(capacity, 7), places(tokens, 7);
      auto found_rows = rows, found_selected = selected, found_places = places;
      host::select_labels(
          {labels.data(), tokens, rows.data(), selected.data(), capacity, places.data()});
      const IntsOnGpu in(labels), rows_out(rows), selected_out(selected), places_out(places);
      const auto writable = [](const IntsOnGpu& ints) {
        return const_cast<std::int32_t*>(ints.data());
      };
      gpu().select_labels({in.data(), tokens, writable(rows_out), writable(selected_out), capacity,
                           writable(places_out)});
      const auto read = [](std::vector<std::int32_t>& to, const IntsOnGpu& from) {
        gpu().download(to.data(), from.data(), to.size() * sizeof(std::int32_t));
      };
      read(found_rows, rows_out);
      read(found_selected, selected_out);
      read(found_places, places_out);
      EXPECT_EQ(found_rows, rows) << tokens << ", " << percent << " %";
      EXPECT_EQ(found_selected, selected) << tokens << ", " << percent << " %";
      EXPECT_EQ(found_places, places) << tokens << ", " << percent << " %";
    }
}

}  // namespace
}  // namespace trireme::kernels
