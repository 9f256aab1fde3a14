#include "workbench.hpp"

namespace trireme::kernels {
namespace {

// Narrow and wide rows, rows of one warp and of many, with and without 16-byte alignment, in every
// number of groups a thread, with more rows than are in flight together and with fewer.
const Shape kNormShapes[] = {{1, 1},     {3, 7},     {5, 3, 40},  {777, 768},  {300, 1600},
                             {41, 2560}, {19, 1027}, {1501, 256}, {1203, 504}, {99, 1024},
                             {83, 1280}, {17, 4096}, {4500, 768}, {11, 5120},  {5, 12288},
                             {3, 3001},  {7, 8192},  {2, 16384}};

void expect_norms_as_on_host(const Shape& shape, DType dtype, NormKind kind) {
  const bool layer = kind == NormKind::layer;
  expect_as_on_host(
      (layer ? "layernorm of " : "RMS norm of ") + to_string(shape), dtype,
      [&](Workbench& bench) -> std::vector<Output> {
        const std::int64_t h = shape[shape.rank() - 1], rows = shape.size() / h;
        const Tensor out = bench.poisoned(shape), rstd = bench.wide_poisoned({rows});
        const Tensor mean = layer ? bench.wide_poisoned({rows}) : Tensor();
        bench.backend().layernorm_forward({.x = bench.random(shape, 1, 3.0),
                                           .weight = bench.random({h}, 2),
                                           .bias = layer ? bench.random({h}, 3) : Tensor(),
                                           .out = out,
                                           .mean = mean,
                                           .rstd = rstd,
                                           .kind = kind});
        std::vector<Output> outputs{{"out", out}, {"rstd", rstd}};
        if (layer) outputs.push_back({"mean", mean});
        return outputs;
      });
}

TEST(LayerNorm, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const Shape& shape : kNormShapes) expect_norms_as_on_host(shape, dtype, NormKind::layer);
}

TEST(RmsNorm, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const Shape& shape : kNormShapes) expect_norms_as_on_host(shape, dtype, NormKind::rms);
}

TEST(LayerNorm, KeepsItsPrecisionFarFromZero) {
  std::vector<double> x = random_values(100 * 768, 1, DType::f32);
  for (double& value : x) value += 1000.0;
  x = rounded(x, DType::f32);
  expect_as_on_host(
      "layernorm around 1000", DType::f32,
      [&](Workbench& bench) -> std::vector<Output> {
        const Tensor out = bench.poisoned({100, 768});
        bench.backend().layernorm_forward({.x = bench.given({100, 768}, x),
                                           .weight = bench.random({768}, 2),
                                           .bias = bench.random({768}, 3),
                                           .out = out,
                                           .mean = bench.wide_poisoned({100}),
                                           .rstd = bench.wide_poisoned({100})});
        return {{"out", out}};
      },
      1e-4);
}

// The statistics of rows, as a forward pass left them.
struct Statistics {
  std::vector<double> mean, rstd;

  Statistics(const std::vector<double>& x, std::int64_t h) {
    for (std::size_t begin = 0; begin < x.size(); begin += h) {
      double sum = 0.0, squares = 0.0;
      for (std::int64_t i = 0; i < h; ++i) sum += x[begin + i];
      for (std::int64_t i = 0; i < h; ++i)
        squares += (x[begin + i] - sum / h) * (x[begin + i] - sum / h);
      mean.push_back(sum / h);
      rstd.push_back(1.0 / std::sqrt(squares / h + 1e-5));
    }
    mean = rounded(mean, DType::f32);
    rstd = rounded(rstd, DType::f32);
  }
};

void expect_gradients_as_on_host(const Shape& shape, DType dtype, bool sums_dx,
                                 NormKind kind = NormKind::layer) {
  const bool layer = kind == NormKind::layer;
  const std::int64_t h = shape[shape.rank() - 1], rows = shape.size() / h;
  const std::vector<double> x = random_values(shape.size(), 1, dtype, 3.0);
  const Statistics statistics(x, h);
  expect_as_on_host((layer ? "layernorm gradient of " : "RMS norm gradient of ") + to_string(shape),
                    dtype, [&](Workbench& bench) -> std::vector<Output> {
                      const LayerNormBackward args{
                          .dout = bench.random(shape, 5),
                          .x = bench.given(shape, x),
                          .weight = bench.random({h}, 6),
                          .mean = layer ? bench.wide_given({rows}, statistics.mean) : Tensor(),
                          .rstd = bench.wide_given({rows}, statistics.rstd),
                          .dx = bench.random(shape, 2),
                          .dweight = bench.wide_random({h}, 3),
                          .dbias = layer ? bench.wide_random({h}, 4) : Tensor(),
                          .dx_sum = sums_dx ? bench.wide_random({h}, 7) : Tensor(),
                          .kind = kind};
                      bench.backend().layernorm_backward(args);
                      std::vector<Output> outputs{{"dx", args.dx}, {"dweight", args.dweight}};
                      if (layer) outputs.push_back({"dbias", args.dbias});
                      if (sums_dx) outputs.push_back({"dx_sum", args.dx_sum});
                      return outputs;
                    });
}

TEST(LayerNormBackward, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const Shape& shape : kNormShapes) expect_gradients_as_on_host(shape, dtype, false);
}

TEST(LayerNormBackward, SumsTheColumnsOfDx) {
  for (const DType dtype : kStorageTypes)
    for (const Shape& shape : kNormShapes) expect_gradients_as_on_host(shape, dtype, true);
}

TEST(RmsNormBackward, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const Shape& shape : kNormShapes)
      for (const bool sums_dx : {false, true})
        expect_gradients_as_on_host(shape, dtype, sums_dx, NormKind::rms);
}

// What is normalised again has the bits of the forward pass.
void expect_recomputed_output(NormKind kind) {
  const bool layer = kind == NormKind::layer;
  for (const DType dtype : kStorageTypes)
    for (const Shape& shape : kNormShapes) {
      SCOPED_TRACE(fmt::format("{} in {}", to_string(shape), name_of(dtype)));
      const std::int64_t h = shape[shape.rank() - 1], rows = shape.size() / h;
      Workbench bench(/*on_gpu=*/true, dtype, dtype);
      const LayerNormForward forward{.x = bench.random(shape, 1, 3.0),
                                     .weight = bench.random({h}, 2),
                                     .bias = layer ? bench.random({h}, 3) : Tensor(),
                                     .out = bench.poisoned(shape),
                                     .mean = layer ? bench.wide_poisoned({rows}) : Tensor(),
                                     .rstd = bench.wide_poisoned({rows}),
                                     .kind = kind};
      gpu().layernorm_forward(forward);
      for (const bool sums_dx : {false, true}) {
        const Tensor again = bench.poisoned(shape);
        gpu().layernorm_backward({.dout = bench.random(shape, 5),
                                  .x = forward.x,
                                  .weight = forward.weight,
                                  .mean = forward.mean,
                                  .rstd = forward.rstd,
                                  .dx = bench.random(shape, 2),
                                  .dweight = bench.wide_random({h}, 3),
                                  .dbias = layer ? bench.wide_random({h}, 4) : Tensor(),
                                  .dx_sum = sums_dx ? bench.wide_random({h}, 7) : Tensor(),
                                  .out = again,
                                  .bias = forward.bias,
                                  .kind = kind});
        EXPECT_EQ(bench.read(again), bench.read(forward.out));
      }
    }
}

TEST(LayerNormBackward, RecomputesTheOutput) { expect_recomputed_output(NormKind::layer); }
TEST(RmsNormBackward, RecomputesTheOutput) { expect_recomputed_output(NormKind::rms); }

// A kernel may be launched while the one before it on the stream still runs, also after copies and
// in recordings. The results are those of operations that the host waits for, one after the other.
TEST(LayerNorm, WaitsForThePreviousOperation) {
  const Shape shape{32, 64, 768}, columns{768}, per_row{32 * 64};
  Workbench bench(/*on_gpu=*/true, DType::bf16, DType::bf16);
  const Tensor start = bench.random(shape, 1, 3.0), x = bench.poisoned(shape);
  const Tensor norm = bench.poisoned(shape), dx = bench.poisoned(shape);
  const Tensor weight = bench.random(columns, 2), bias = bench.random(columns, 3);
  const Tensor mean = bench.wide_poisoned(per_row), rstd = bench.wide_poisoned(per_row);
  const Tensor dweight = bench.wide_poisoned(columns), dbias = bench.wide_poisoned(columns);
  const Tensor dx_sum = bench.wide_poisoned(columns), column_sums = bench.wide_poisoned(columns);
  const std::vector<std::function<void()>> operations = {
      [&] {
        gpu().layernorm_forward(
            {.x = x, .weight = weight, .bias = bias, .out = norm, .mean = mean, .rstd = rstd});
      },
      [&] { gpu().copy(dx.data, norm.data, norm.bytes()); },
      [&] {
        gpu().layernorm_backward({.dout = norm,
                                  .x = x,
                                  .weight = weight,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .dx = dx,
                                  .dweight = dweight,
                                  .dbias = dbias,
                                  .dx_sum = dx_sum});
      },
      [&] { gpu().bias_dropout_residual({.x = dx, .bias = bias, .residual = x, .out = x}); },
      [&] { gpu().bias_gradient({.dout = x, .dbias = column_sums}); }};
  const auto results = [&](const std::function<void()>& run) {
    gpu().copy(x.data, start.data, start.bytes());
    for (const Tensor& sum : {dweight, dbias, dx_sum, column_sums}) gpu().zero(sum);
    run();
    std::vector<std::vector<double>> values;
    for (const Tensor& tensor : {x, norm, dx, mean, rstd, dweight, dbias, dx_sum, column_sums})
      values.push_back(bench.read(tensor));
    return values;
  };
  const auto run = [&](bool one_by_one) {
    for (int layer = 0; layer < 6; ++layer)
      for (const auto& operation : operations) {
        operation();
        if (one_by_one) gpu().synchronize();
      }
  };
  const auto expected = results([&] { run(/*one_by_one=*/true); });
  const auto recording = gpu().capture([&] { run(/*one_by_one=*/false); });
  ASSERT_NE(recording, nullptr);
  for (int turn = 0; turn < 5; ++turn) {
    EXPECT_EQ(results([&] { run(/*one_by_one=*/false); }), expected);
    EXPECT_EQ(results([&] { recording->replay(); }), expected);
  }
}

}  // namespace
}  // namespace trireme::kernels
