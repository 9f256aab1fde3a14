#include "workbench.hpp"

namespace trireme::kernels {
namespace {

const Shape kShapes[] = {{1, 1, 1},      {3, 2, 7},  {5, 3, 768},
                         {129, 4, 1600}, {2, 3, 12}, {3, 2, 5001}};

// A micro-batch far into a run.
Dropout dropout_of(Workbench& bench, double probability) {
  return {.probability = probability,
          .seed = 0x123456789ABCDEF0ull,
          .first_sample = bench.index((std::uint64_t{1} << 33) + 5),
          .layer = 7,
          .site = DropoutSite::mlp};
}

TEST(Dropout, DrawsTheMasksOfTheHost) {
  for (const DType dtype : kStorageTypes) {
    for (const Shape& shape : kShapes) {
      for (const double probability : {0.0, 0.1, 0.75}) {
        for (const bool in_place : {false, true}) {
          expect_as_on_host(
              "dropout gradient of " + to_string(shape), dtype,
              [&](Workbench& bench) -> std::vector<Output> {
                const Tensor dout = bench.random(shape, 1);
                const Tensor dx = in_place ? dout : bench.poisoned(shape);
                bench.backend().dropout_backward({.dout = dout,
                                                  .dx = dx,
                                                  .dropout = dropout_of(bench, probability),
                                                  .first_position = in_place ? 0 : 517});
                return {{"dx", dx}};
              });
        }
      }
    }
  }
}

TEST(BiasDropoutResidual, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes) {
    for (const Shape& shape : kShapes) {
      for (const double probability : {0.0, 0.3}) {
        for (const bool in_place : {false, true}) {
          expect_as_on_host(
              "bias dropout residual of " + to_string(shape), dtype,
              [&](Workbench& bench) -> std::vector<Output> {
                const Tensor residual = bench.random(shape, 1);
                const Tensor out = in_place ? residual : bench.poisoned(shape);
                bench.backend().bias_dropout_residual({.x = bench.random(shape, 2),
                                                       .bias = bench.random({shape[2]}, 3),
                                                       .residual = residual,
                                                       .out = out,
                                                       .dropout = dropout_of(bench, probability),
                                                       .first_position = in_place ? 0 : 517});
                return {{"out", out}};
              });
        }
      }
    }
  }
}

TEST(BiasDropoutResidual, AgreesWithTheHostWithoutABias) {
  for (const DType dtype : kStorageTypes)
    for (const Shape& shape : kShapes)
      for (const double probability : {0.0, 0.3})
        expect_as_on_host(
            "dropout residual of " + to_string(shape), dtype,
            [&](Workbench& bench) -> std::vector<Output> {
              const Tensor out = bench.poisoned(shape);
              bench.backend().bias_dropout_residual({.x = bench.random(shape, 2),
                                                     .residual = bench.random(shape, 1),
                                                     .out = out,
                                                     .dropout = dropout_of(bench, probability)});
              return {{"out", out}};
            });
}

// The fused pass against the two that it stands for, bit by bit: those have references of their
// own. With an RMS norm without bias, with a layer norm with one.
void expect_the_sum_and_the_norm(NormKind kind) {
  const bool layer = kind == NormKind::layer;
  for (const DType dtype : kStorageTypes) {
    for (const Shape& shape : kShapes) {
      for (const double probability : {0.0, 0.3}) {
        const std::int64_t h = shape[2], rows = shape[0] * shape[1];
        Workbench bench(true, dtype, dtype);
        const Tensor weight = bench.random({h}, 4);
        const Tensor bias = layer ? bench.random({h}, 5) : Tensor();
        const BiasDropoutResidual sum{.x = bench.random(shape, 2),
                                      .bias = layer ? bench.random({h}, 3) : Tensor(),
                                      .residual = bench.random(shape, 1),
                                      .out = bench.poisoned(shape),
                                      .dropout = dropout_of(bench, probability)};
        BiasDropoutResidual fused_sum = sum;
        fused_sum.out = bench.poisoned(shape);
        const LayerNormForward norm{.x = sum.out,
                                    .weight = weight,
                                    .bias = bias,
                                    .out = bench.poisoned(shape),
                                    .mean = layer ? bench.wide_poisoned({rows}) : Tensor(),
                                    .rstd = bench.wide_poisoned({rows}),
                                    .kind = kind};
        const BiasDropoutResidualNorm fused{.sum = fused_sum,
                                            .weight = weight,
                                            .norm_bias = bias,
                                            .norm = bench.poisoned(shape),
                                            .mean = layer ? bench.wide_poisoned({rows}) : Tensor(),
                                            .rstd = bench.wide_poisoned({rows}),
                                            .kind = kind};
        gpu().bias_dropout_residual(sum);
        gpu().layernorm_forward(norm);
        gpu().bias_dropout_residual_norm(fused);
        const std::string name = to_string(shape) + ", " + std::string(name_of(dtype));
        EXPECT_EQ(bench.read(fused.sum.out), bench.read(sum.out)) << name;
        EXPECT_EQ(bench.read(fused.norm), bench.read(norm.out)) << name;
        if (layer) {
          EXPECT_EQ(bench.read(fused.mean), bench.read(norm.mean)) << name;
        }
        EXPECT_EQ(bench.read(fused.rstd), bench.read(norm.rstd)) << name;
      }
    }
  }
}

// The terms of several ranks, all on this GPU, against their sum, bit by bit.
TEST(BiasDropoutResidualNorm, AddsTheTermsOfRanks) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Shape& shape : {Shape{5, 3, 768}, Shape{129, 4, 1600}, Shape{2, 3, 8}}) {
      for (const int ranks : {2, 4, 8}) {
        const std::int64_t h = shape[2], rows = shape[0] * shape[1];
        Workbench bench(true, dtype, dtype);
        PeerTerms terms{.count = ranks};
        std::vector<float> sums(shape.size(), 0.0f);
        for (int rank = 0; rank < ranks; ++rank) {
          const Tensor term = bench.random(shape, 10 + rank);
          terms.terms[rank] = term.data;
          const std::vector<double> values = bench.read(term);
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<float>(values[i]);
        }
        const auto arguments = [&](const Tensor& x) {
          return BiasDropoutResidualNorm{.sum = {.x = x,
                                                 .bias = bench.random({h}, 3),
                                                 .residual = bench.random(shape, 1),
                                                 .out = bench.poisoned(shape),
                                                 .dropout = dropout_of(bench, 0.3)},
                                         .weight = bench.random({h}, 4),
                                         .norm_bias = bench.random({h}, 5),
                                         .norm = bench.poisoned(shape),
                                         .mean = bench.wide_poisoned({rows}),
                                         .rstd = bench.wide_poisoned({rows})};
        };
        const BiasDropoutResidualNorm expected =
            arguments(bench.given(shape, {sums.begin(), sums.end()}));
        BiasDropoutResidualNorm added = arguments(bench.poisoned(shape));
        added.terms = terms;
        gpu().bias_dropout_residual_norm(expected);
        gpu().bias_dropout_residual_norm(added);
        const std::string name =
            fmt::format("{} of {} ranks, {}", to_string(shape), ranks, name_of(dtype));
        EXPECT_EQ(bench.read(added.sum.out), bench.read(expected.sum.out)) << name;
        EXPECT_EQ(bench.read(added.norm), bench.read(expected.norm)) << name;
        EXPECT_EQ(bench.read(added.mean), bench.read(expected.mean)) << name;
        EXPECT_EQ(bench.read(added.rstd), bench.read(expected.rstd)) << name;
      }
    }
  }
}

TEST(BiasDropoutResidualNorm, IsTheSumAndTheLayerNorm) {
  expect_the_sum_and_the_norm(NormKind::layer);
}
TEST(BiasDropoutResidualNorm, IsTheSumAndTheRmsNorm) { expect_the_sum_and_the_norm(NormKind::rms); }

}  // namespace
}  // namespace trireme::kernels
