#include "../workbench.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/vocabulary.hpp"

namespace trireme::kernels {
namespace {

TEST(Muon, MomentumAgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const std::int64_t size : {1, 7, 4097, 30005})
      for (const bool nesterov : {false, true})
        expect_as_on_host(fmt::format("momentum of {}", size), dtype,
                          [&](Workbench& bench) -> std::vector<Output> {
                            const Tensor m = bench.wide_random({size}, 2);
                            const Tensor out = bench.poisoned({size});
                            const MuonMomentum args{.gradient = bench.wide_random({size}, 1),
                                                    .m = m,
                                                    .out = out,
                                                    .gradient_scale = 0.7,
                                                    .nesterov = nesterov};
                            bench.backend().muon_momentum(args);
                            return {{"m", m}, {"out", out}};
                          });
}

TEST(Muon, NormAndPolynomialAgreeWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const std::int64_t r : {1, 5, 64, 333})
      expect_as_on_host(
          fmt::format("matrix of {} rows", r), dtype, [&](Workbench& bench) -> std::vector<Output> {
            const Tensor normal = bench.poisoned({r, r}), out = bench.poisoned({r, r});
            bench.backend().muon_normalize({bench.random({r, r}, 1), normal});
            bench.backend().muon_polynomial(
                {bench.random({r, r}, 2), bench.random({r, r}, 3), out, 3.4445, -4.775, 2.0315});
            return {{"normal", normal}, {"polynomial", out}};
          });
}

TEST(ScaledCopy, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const std::int64_t columns : {1, 12, 256})
      expect_as_on_host(
          fmt::format("copy of {} columns", columns), dtype,
          [&](Workbench& bench) -> std::vector<Output> {
            const Tensor x = bench.random({33, 3 * columns}, 1);
            const Tensor same = bench.given({33, 2 * columns}, std::vector<double>(66 * columns));
            const Tensor wide = bench.wide_poisoned({33, columns});
            const Tensor narrow = bench.poisoned({33, columns});
            bench.backend().scaled_copy({x, same, 33, columns, 3 * columns, 2 * columns, 0.5});
            bench.backend().scaled_copy({x, wide, 33, columns, 3 * columns, columns, 0.7});
            bench.backend().scaled_copy({wide, narrow, 33, columns, columns, columns, -2.0});
            return {{"same", same}, {"wide", wide}, {"narrow", narrow}};
          });
}

TEST(ZLoss, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const std::int64_t columns : {5, 40, 50257})
      expect_as_on_host(
          fmt::format("z-loss of {} columns", columns), dtype,
          [&](Workbench& bench) -> std::vector<Output> {
            const std::int64_t rows = 9;
            const Tensor logits = bench.random({rows, columns}, 1, 3.0);
            const Tensor again = bench.random({rows, columns}, 1, 3.0);
            const std::int32_t* labels = bench.integers({0, 1, -1, 3, 4, 2, 1, -1, 0});
            const Tensor max = bench.wide_poisoned({rows}), sum = bench.wide_poisoned({rows});
            const Tensor target = bench.wide_poisoned({rows});
            const Tensor loss = bench.number(0.0), largest = bench.number(-1e9);
            bench.backend().cross_entropy_statistics_backward({.statistics = {.logits = logits,
                                                                              .columns = columns,
                                                                              .labels = labels,
                                                                              .max = max,
                                                                              .sum = sum,
                                                                              .target = target},
                                                               .scale = 0.25,
                                                               .z_loss = 0.01});
            bench.backend().cross_entropy_backward({.logits = again,
                                                    .columns = columns,
                                                    .labels = labels,
                                                    .max = max,
                                                    .sum = sum,
                                                    .scale = 0.25,
                                                    .z_loss = 0.01});
            bench.backend().cross_entropy_loss({.labels = labels,
                                                .max = max,
                                                .sum = sum,
                                                .target = target,
                                                .loss = loss,
                                                .largest = largest});
            return {{"fused", logits}, {"gradient", again}, {"loss", loss}, {"largest", largest}};
          },
          5e-6);
}

}  // namespace
}  // namespace trireme::kernels
