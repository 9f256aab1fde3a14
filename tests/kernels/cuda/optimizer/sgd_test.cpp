#include "kernels/optimizer.hpp"

#include "../workbench.hpp"

namespace trireme::kernels {
namespace {

// Bounds of ranges that begin and end within blocks' chunks, at their ends, and twice at a
// place.
const std::vector<std::int64_t> kSgdBounds = {0, 3, 40, 40, 50, 4096, 9000, 16384, 16390, 20001};

Sgd step(const Tensor& weight, const Tensor& gradient, const Tensor& m,
         const IndexRanges& decayed) {
  return {.weight = weight,
          .gradient = gradient,
          .m = m,
          .learning_rate = 1e-2,
          .momentum = m ? 0.9 : 0.0,
          .weight_decay = 0.1,
          .gradient_scale = 0.7,
          .decayed = decayed};
}

TEST(Sgd, AgreesWithTheHost) {
  for (const std::int64_t size : {1, 7, 4096, 8193, 30005}) {
    for (const bool momentum : {false, true}) {
      for (const bool ranges : {false, true}) {
        expect_as_on_host(
            fmt::format("sgd of {}", size), DType::f32,
            [&](Workbench& bench) -> std::vector<Output> {
              const Tensor weight = bench.wide_random({size}, 1);
              const Tensor gradient = bench.wide_random({size}, 2);
              const Tensor m = bench.wide_random({size}, 3);
              IndexRanges decayed;
              if (ranges)
                decayed = {bench.bounds(kSgdBounds), static_cast<std::int64_t>(kSgdBounds.size())};
              bench.backend().sgd(step(weight, gradient, momentum ? m : Tensor{}, decayed));
              return {{"weight", weight}, {"m", m}};
            });
      }
    }
  }
}

TEST(Sgd, RoundsACopy) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    constexpr std::int64_t kSize = 8205;
    Workbench bench(true, dtype, dtype);
    const Tensor weight = bench.wide_random({kSize}, 1), gradient = bench.wide_random({kSize}, 2);
    const Tensor copy = bench.given({kSize}, std::vector<double>(kSize, 0.5));
    Sgd args = step(weight, gradient, {}, {});
    args.copy = copy;
    gpu().sgd(args);
    EXPECT_EQ(bench.read(copy), rounded(bench.read(weight), dtype)) << name_of(dtype);
  }
}

}  // namespace
}  // namespace trireme::kernels
