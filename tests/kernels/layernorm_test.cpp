#include "kernels/norms.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
struct LayerNormProblem {
  Owned<T> x, weight, bias, out, mean, rstd, dout, dx, dweight, dbias, dx_sum;

  LayerNormProblem(std::int64_t rows, std::int64_t h)
      : x(Owned<T>::random({rows, h}, 1, 2.0)),
        weight(Owned<T>::random({h}, 2)),
        bias(Owned<T>::random({h}, 3)),
        out({rows, h}),
        mean({rows}),
        rstd({rows}),
        dout(Owned<T>::random({rows, h}, 4)),
        dx(Owned<T>::random({rows, h}, 5)),
        dweight(Owned<T>::random({h}, 6)),
        dbias(Owned<T>::random({h}, 7)),
        dx_sum(Owned<T>::random({h}, 8)) {
    for (std::int64_t i = 0; i < x.size(); ++i) x[i] += T{3};
  }

  void forward() {
    host::layernorm_forward({x.tensor(), weight.tensor(), bias.tensor(), out.tensor(),
                             mean.tensor(), rstd.tensor(), 1e-5});
  }
  void backward() {
    host::layernorm_backward({dout.tensor(), x.tensor(), weight.tensor(), mean.tensor(),
                              rstd.tensor(), dx.tensor(), dweight.tensor(), dbias.tensor(),
                              dx_sum.tensor()});
  }
};

struct ExpectedLayerNorm {
  std::vector<double> out, dx, dweight, dbias, dx_sum;
};

// The formulas of the paper, in double; gradients are added to what `p` holds.
template <typename T>
ExpectedLayerNorm reference(const LayerNormProblem<T>& p, std::int64_t rows, std::int64_t h) {
  ExpectedLayerNorm e{std::vector<double>(rows * h), std::vector<double>(rows * h), {}, {}, {}};
  for (std::int64_t i = 0; i < h; ++i) {
    e.dweight.push_back(p.dweight[i]);
    e.dbias.push_back(p.dbias[i]);
    e.dx_sum.push_back(p.dx_sum[i]);
  }
  for (std::int64_t t = 0; t < rows; ++t) {
    double mean = 0, variance = 0, plain = 0, along = 0;
    for (std::int64_t i = 0; i < h; ++i) mean += p.x[t * h + i] / h;
    for (std::int64_t i = 0; i < h; ++i) variance += std::pow(p.x[t * h + i] - mean, 2) / h;
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    for (std::int64_t i = 0; i < h; ++i) {
      const double normal = (p.x[t * h + i] - mean) * rstd, g = p.dout[t * h + i];
      e.out[t * h + i] = normal * p.weight[i] + p.bias[i];
      e.dweight[i] += g * normal;
      e.dbias[i] += g;
      plain += g * p.weight[i] / h;
      along += g * p.weight[i] * normal / h;
    }
    for (std::int64_t i = 0; i < h; ++i) {
      e.dx[t * h + i] = p.dx[t * h + i] + rstd * (p.dout[t * h + i] * p.weight[i] - plain -
                                                  (p.x[t * h + i] - mean) * rstd * along);
      e.dx_sum[i] += e.dx[t * h + i];
    }
  }
  return e;
}

template <typename T>
class LayerNormTest : public ::testing::Test {};
TYPED_TEST_SUITE(LayerNormTest, StorageTypes);

TYPED_TEST(LayerNormTest, MatchesTheFormulas) {
  using T = TypeParam;
  for (const auto& [rows, h] : {std::pair{1, 5}, {7, 33}, {130, 80}, {3, 1030}}) {
    LayerNormProblem<T> p(rows, h);
    const ExpectedLayerNorm e = reference(p, rows, h);
    p.forward();
    p.backward();
    expect_close("out", p.out, e.out, tolerance<T>(1e-6));
    expect_close("dx", p.dx, e.dx, tolerance<T>(2e-6));
    expect_close("dweight", p.dweight, e.dweight, tolerance<T>(2e-6));
    expect_close("dbias", p.dbias, e.dbias, tolerance<T>(1e-6));
    expect_close("dx_sum", p.dx_sum, e.dx_sum, tolerance<T>(2e-6));
  }
}

TYPED_TEST(LayerNormTest, ThreadsChangeNothing) {
  using T = TypeParam;
  LayerNormProblem<T> fresh(37, 201);
  fresh.forward();
  expect_threads_change_nothing<T>("out", [&] {
    LayerNormProblem<T> p = fresh;
    p.forward();
    return p.out;
  });
  for (Owned<T> LayerNormProblem<T>::*result :
       {&LayerNormProblem<T>::dx, &LayerNormProblem<T>::dweight, &LayerNormProblem<T>::dbias,
        &LayerNormProblem<T>::dx_sum})
    expect_threads_change_nothing<T>("gradient", [&] {
      LayerNormProblem<T> p = fresh;
      p.backward();
      return p.*result;
    });
}

TEST(LayerNorm, GradientsMatchFiniteDifferences) {
  for (const auto& [rows, h] : {std::pair{1, 5}, {4, 13}}) {
    LayerNormProblem<double> p(rows, h);
    p.dx = Owned<double>({rows, h}, 0.0);
    p.dweight = p.dbias = Owned<double>({h}, 0.0);
    p.forward();
    p.backward();
    const auto loss = [&] {
      p.forward();
      return dot(p.out, p.dout);
    };
    expect_gradient("dx", p.x, p.dx, loss);
    expect_gradient("dweight", p.weight, p.dweight, loss);
    expect_gradient("dbias", p.bias, p.dbias, loss);
  }
}

// x, weight and what the backward pass writes of an RMS norm.
struct RmsProblem {
  Owned<double> x, weight, out, rstd, dout, dx, dweight, dx_sum, again;

  RmsProblem(std::int64_t rows, std::int64_t h)
      : x(Owned<double>::random({rows, h}, 1, 2.0)),
        weight(Owned<double>::random({h}, 2)),
        out({rows, h}),
        rstd({rows}),
        dout(Owned<double>::random({rows, h}, 4)),
        dx({rows, h}, 0.0),
        dweight({h}, 0.0),
        dx_sum({h}, 0.0),
        again({rows, h}) {}

  void forward() {
    host::layernorm_forward({.x = x.tensor(),
                             .weight = weight.tensor(),
                             .out = out.tensor(),
                             .rstd = rstd.tensor(),
                             .eps = 1e-3,
                             .kind = NormKind::rms});
  }
  void backward() {
    host::layernorm_backward({.dout = dout.tensor(),
                              .x = x.tensor(),
                              .weight = weight.tensor(),
                              .rstd = rstd.tensor(),
                              .dx = dx.tensor(),
                              .dweight = dweight.tensor(),
                              .dx_sum = dx_sum.tensor(),
                              .out = again.tensor(),
                              .kind = NormKind::rms});
  }
};

TEST(RmsNorm, MatchesTheFormulaAndFiniteDifferences) {
  for (const auto& [rows, h] : {std::pair{1, 5}, {4, 13}, {3, 70}}) {
    RmsProblem p(rows, h);
    p.forward();
    std::vector<double> expected, sums(h, 0.0);
    for (int t = 0; t < rows; ++t) {
      double squares = 0.0;
      for (int i = 0; i < h; ++i) squares += p.x[t * h + i] * p.x[t * h + i];
      for (int i = 0; i < h; ++i)
        expected.push_back(p.x[t * h + i] / std::sqrt(squares / h + 1e-3) * p.weight[i]);
    }
    expect_close("out", p.out, expected, 1e-14);
    p.backward();
    expect_same_bits("out again", p.again, p.out);
    for (int i = 0; i < rows * h; ++i) sums[i % h] += p.dx[i];
    expect_close("dx_sum", p.dx_sum, sums, 1e-13);
    const auto loss = [&] {
      p.forward();
      return dot(p.out, p.dout);
    };
    expect_gradient("dx", p.x, p.dx, loss);
    expect_gradient("dweight", p.weight, p.dweight, loss);
  }
}

TEST(LayerNorm, SumsTheColumnsOfDxOnlyWhenAsked) {
  LayerNormProblem<double> p(7, 33), plain = p;
  p.forward();
  plain.forward();
  p.backward();
  const Owned<double> before = plain.dx_sum;
  host::layernorm_backward({plain.dout.tensor(), plain.x.tensor(), plain.weight.tensor(),
                            plain.mean.tensor(), plain.rstd.tensor(), plain.dx.tensor(),
                            plain.dweight.tensor(), plain.dbias.tensor()});
  for (std::int64_t i = 0; i < p.dx.size(); ++i) EXPECT_EQ(plain.dx[i], p.dx[i]);
  for (std::int64_t i = 0; i < before.size(); ++i) EXPECT_EQ(plain.dx_sum[i], before[i]);
}

template <typename T>
void expect_recomputed_output(std::int64_t rows, std::int64_t h) {
  LayerNormProblem<T> p(rows, h), plain = p;
  p.forward();
  plain.forward();
  plain.backward();
  Owned<T> again({rows, h});
  host::layernorm_backward({p.dout.tensor(), p.x.tensor(), p.weight.tensor(), p.mean.tensor(),
                            p.rstd.tensor(), p.dx.tensor(), p.dweight.tensor(), p.dbias.tensor(),
                            p.dx_sum.tensor(), again.tensor(), p.bias.tensor()});
  for (std::int64_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i], p.out[i]) << i;
    EXPECT_EQ(p.dx[i], plain.dx[i]) << i;
  }
}

TEST(LayerNorm, BackwardRecomputesTheOutput) {
  expect_recomputed_output<float>(7, 33);
  expect_recomputed_output<double>(3, 64);
}

TEST(LayerNorm, SurvivesAConstantRow) {
  LayerNormProblem<float> p(2, 8);
  p.x = Owned<float>({2, 8}, 1e4);
  p.forward();
  for (std::int64_t i = 0; i < p.out.size(); ++i) EXPECT_EQ(p.out[i], p.bias[i % 8]);
}

TEST(LayerNorm, NamesTheWrongOperand) {
  LayerNormProblem<float> p(2, 8);
  p.weight = Owned<float>({7}, 1.0);
  try {
    p.forward();
    FAIL() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(
        std::string(error.what()).find("layernorm_forward: weight is [7], expected 8 elements"),
        std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::kernels
