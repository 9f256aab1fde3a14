#include "../workbench.hpp"

namespace trireme::kernels {
namespace {

// Bounds of ranges that begin and end within blocks' chunks, at their ends, and twice at a
// place.
const std::vector<std::int64_t> kShardBounds = {0, 3, 40, 40, 50, 8192, 9000, 16384, 16390, 20001};

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
                counted = {bench.bounds(kShardBounds),
                           static_cast<std::int64_t>(kShardBounds.size())};
              bench.backend().zero_count(
                  {.x = x.rows(first, size - first), .out = out, .counted = counted});
              return {{"count", out}};
            },
            0.0);
      }
    }
  }
}

TEST(Checksum, IsTheHosts) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::float8_e4m3}) {
    for (const std::int64_t size : {1, 255, 4097, 1'000'001}) {
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size) * size_of(dtype));
      for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(i * 167 + i / 251);
      std::uint64_t expected = 3;
      host::checksum({{bytes.data(), dtype, {size}}, &expected});
      const auto x = gpu().allocate(bytes.size(), "a test");
      const auto out = gpu().allocate(sizeof expected, "a test");
      gpu().upload(x.get(), bytes.data(), bytes.size());
      std::uint64_t sum = 3;
      gpu().upload(out.get(), &sum, sizeof sum);
      gpu().checksum({{x.get(), dtype, {size}}, static_cast<std::uint64_t*>(out.get())});
      gpu().download(&sum, out.get(), sizeof sum);
      EXPECT_EQ(sum, expected) << name_of(dtype) << " " << size;
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
