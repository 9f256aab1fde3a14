#include "kernels/optimizer.hpp"

#include "../workbench.hpp"

namespace trireme::kernels {
namespace {

const std::vector<std::int64_t> kLambBounds = {0, 3, 40, 40, 50, 4096, 9000, 16384, 16390, 20001};

TEST(Lamb, DirectionAgreesWithTheHost) {
  for (const std::int64_t size : {1, 7, 4096, 8193, 30005}) {
    for (const bool ranges : {false, true}) {
      expect_as_on_host(fmt::format("lamb direction of {}", size), DType::f32,
                        [&](Workbench& bench) -> std::vector<Output> {
                          const Tensor weight = bench.wide_random({size}, 1);
                          const Tensor gradient = bench.wide_random({size}, 2);
                          const Tensor m = bench.wide_random({size}, 3, 0.1);
                          const Tensor v =
                              bench.wide_given({size}, std::vector<double>(size, 0.25));
                          LambDirection args{.weight = weight,
                                             .gradient = gradient,
                                             .m = m,
                                             .v = v,
                                             .weight_decay = 0.1,
                                             .gradient_scale = 0.7,
                                             .step = 3};
                          if (ranges)
                            args.decayed = {bench.bounds(kLambBounds),
                                            static_cast<std::int64_t>(kLambBounds.size())};
                          bench.backend().lamb_direction(args);
                          return {{"direction", gradient}, {"m", m}, {"v", v}};
                        });
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
