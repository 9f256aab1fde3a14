#include "workbench.hpp"

namespace trireme::kernels {
namespace {

// Bounds of ranges that begin and end within blocks' chunks, at their ends, and twice at a
// place.
const std::vector<std::int64_t> kBounds = {0, 3, 40, 40, 50, 8192, 9000, 16384, 16390, 20001};

/// Zeros of either sign among numbers, one of them smaller than any that is not denormal.
std::vector<double> with_zeros(std::int64_t size) {
  std::vector<double> values = random_values(size, 1, DType::f32);
  for (std::int64_t i = 0; i < size; ++i) {
    if (i % 7 == 3) values[i] = 0.0;
    if (i % 11 == 5) values[i] = -0.0;
    if (i % 13 == 2) values[i] = 1e-42;
  }
  return rounded(values, DType::f32);
}

TEST(ZeroCount, IsTheHosts) {
  for (const std::int64_t size : {1, 7, 4096, 8193, 30005, 10'000'001}) {
    for (const std::int64_t first : {0, 1}) {
      if (first >= size) continue;
      for (const bool ranges : {false, true}) {
        expect_as_on_host(
            fmt::format("zeros of {} from {}", size, first), DType::f32,
            [&](Workbench& bench) -> std::vector<Output> {
              const Tensor x = bench.wide_given({size}, with_zeros(size)), out = bench.number(2.0);
              IndexRanges counted;
              if (ranges)
                counted = {bench.bounds(kBounds), static_cast<std::int64_t>(kBounds.size())};
              bench.backend().zero_count(
                  {.x = x.rows(first, size - first), .out = out, .counted = counted});
              return {{"count", out}};
            },
            0.0);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
