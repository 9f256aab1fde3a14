#include "workbench.hpp"

namespace trireme::kernels {
namespace {

// Rows of a shard, a part of a row, and more elements than one round of the threads.
void expect_the_hosts_bits(const NormalCutoff& cutoff) {
  for (const auto& [dtype, rows, columns] : {std::tuple{DType::f32, 1, 1},
                                             {DType::f32, 3, 70},
                                             {DType::f32, 1, 1000},
                                             {DType::f32, 1500, 1024},
                                             {DType::bf16, 3, 70},
                                             {DType::f16, 3, 70}}) {
    expect_as_on_host(
        fmt::format("{} x {} of {}", rows, columns, name_of(dtype)), dtype,
        [&](Workbench& bench) -> std::vector<Output> {
          const Tensor out = bench.given(
              {rows, columns}, std::vector<double>(static_cast<std::size_t>(rows) * columns));
          bench.backend().random_normal({.out = out,
                                         .deviation = 0.02,
                                         .cutoff = cutoff,
                                         .seed = 1234,
                                         .stream = name_hash("layers/0/mlp/up/weight"),
                                         .row = 5,
                                         .column = 11,
                                         .width = 4096});
          return {{"out", out}};
        },
        0.0);
  }
}

TEST(RandomNormal, HasTheHostsBits) { expect_the_hosts_bits({}); }

TEST(RandomNormal, HasTheHostsBitsWhereItIsTruncated) {
  for (const double at : {1.0, 3.0, kMaxNormalCutoff}) {
    SCOPED_TRACE(at);
    expect_the_hosts_bits(cutoff_at(at));
  }
}

}  // namespace
}  // namespace trireme::kernels
