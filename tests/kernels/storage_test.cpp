// Every host operation on 16-bit types: the results of fp32 arithmetic on the stored values,
// rounded once.
#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/philox.hpp"
#include "kernels/attention.hpp"
#include "kernels/linear.hpp"
#include "kernels/norms.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/vocabulary.hpp"

namespace trireme::kernels {
namespace {

/// One tensor twice: as `dtype` stores it, and the same values in fp32.
class Twin {
 public:
  Twin(DType dtype, Shape shape, std::uint64_t seed, double deviation = 1.0)
      : dtype_(dtype), shape_(shape), floats_(shape.size()), stored_(shape.size() * 4) {
    for (std::size_t i = 0; i < floats_.size(); ++i)
      floats_[i] = static_cast<float>(deviation * philox_normal(seed, 0, i));
    convert_from_float(floats_.data(), floats_.size(), dtype, stored_.data());
    convert_to_float(stored_.data(), floats_.size(), dtype, floats_.data());
  }

  Tensor stored() { return {stored_.data(), dtype_, shape_}; }
  Tensor single() { return {floats_.data(), DType::f32, shape_}; }

  /// Expects what is stored to be the fp32 values, rounded.
  void expect_rounded(const char* name) const {
    std::vector<std::byte> expected(stored_.size());
    convert_from_float(floats_.data(), floats_.size(), dtype_, expected.data());
    for (std::size_t i = 0; i < floats_.size(); ++i)
      ASSERT_EQ(std::memcmp(&stored_[i * size_of(dtype_)], &expected[i * size_of(dtype_)],
                            size_of(dtype_)),
                0)
          << name << " at " << i << ", " << name_of(dtype_) << ", in fp32 " << floats_[i];
  }

 private:
  DType dtype_;
  Shape shape_;
  std::vector<float> floats_;
  std::vector<std::byte> stored_;
};

/// Runs `operation` on the stored tensors and on those in fp32: args(view) makes its arguments.
template <typename Operation, typename Args>
void run_both(const Operation& operation, const Args& args) {
  operation(args([](Twin& twin) { return twin.stored(); }));
  operation(args([](Twin& twin) { return twin.single(); }));
}

class HalfStorage : public ::testing::TestWithParam<DType> {
 protected:
  Twin half(Shape shape, double deviation = 1.0) { return {GetParam(), shape, ++seed_, deviation}; }
  Twin accumulation_type(Shape shape) { return {DType::f32, shape, ++seed_}; }

  std::uint64_t seed_ = 0;
};

constexpr std::int64_t kS = 7, kB = 3, kH = 24, kT = kS * kB;
constexpr Dropout kDropout{
    .probability = 0.25, .seed = 5, .first_sample = &kFirstSample, .layer = 2};

TEST_P(HalfStorage, Gemm) {
  for (const bool one_row : {false, true}) {
    const std::int64_t m = one_row ? 1 : 9, n = 12, k = 20;
    Twin a = half({m, k}), b = half({n, k}), bias = half({n}), c = half({m, n}), d = half({m, n});
    run_both(host::gemm, [&](auto view) {
      return Gemm{
          .a = view(a), .b = view(b), .c = view(c), .transpose_b = true, .bias = view(bias)};
    });
    c.expect_rounded("c");
    run_both(host::gemm, [&](auto view) {
      return Gemm{.a = view(a), .b = view(b), .c = view(d), .transpose_b = true, .beta = 1};
    });
    d.expect_rounded("d, added to");
  }
  Twin a = half({20, 9}), b = half({20, 12}), gradient = accumulation_type({9, 12});
  run_both(host::gemm, [&](auto view) {
    return Gemm{.a = view(a), .b = view(b), .c = view(gradient), .transpose_a = true, .beta = 1};
  });
  gradient.expect_rounded("weight gradient");
}

TEST_P(HalfStorage, GemmOverflowsToInfinity) {
  Twin a = half({4, 256}, 300), c = half({4, 4});
  host::gemm({.a = a.stored(), .b = a.stored(), .c = c.stored(), .transpose_b = true});
  std::vector<float> problem(16);
  convert_to_float(c.stored().data, 16, GetParam(), problem.data());
  EXPECT_EQ(std::isinf(problem[0]), GetParam() == DType::f16) << problem[0];
}

TEST_P(HalfStorage, Embedding) {
  const std::vector<std::int32_t> ids = {3, 0, 9, 3, 5, 5, 1, 2, 8, 7, 3,
                                         4, 6, 3, 0, 9, 9, 1, 2, 3, 4};
  Twin table = half({6, kH}), x = half({kS, kB, kH}), position = half({kS + 2, kH});
  Twin dout = half({kS, kB, kH}), dtable = accumulation_type({6, kH}),
       dposition = accumulation_type({kS + 2, kH});
  run_both(host::embedding_forward, [&](auto view) {
    return EmbeddingForward{ids.data(), view(table), 2, view(x)};
  });
  x.expect_rounded("x");
  run_both(host::position_dropout, [&](auto view) {
    return PositionDropout{view(x), view(position), 1, kDropout};
  });
  x.expect_rounded("x after dropout");
  run_both(host::embedding_backward, [&](auto view) {
    return EmbeddingBackward{ids.data(), view(dout), 2, view(dtable)};
  });
  dtable.expect_rounded("dtable");
  run_both(host::position_backward, [&](auto view) {
    return PositionBackward{view(dout), view(dposition)};
  });
  dposition.expect_rounded("dposition");
}

TEST_P(HalfStorage, LayerNorm) {
  Twin x = half({kT, kH}, 2), weight = half({kH}), bias = half({kH}), out = half({kT, kH});
  Twin mean = accumulation_type({kT}), rstd = accumulation_type({kT}), dout = half({kT, kH}),
       dx = half({kT, kH});
  Twin dweight = accumulation_type({kH}), dbias = accumulation_type({kH});
  run_both(host::layernorm_forward, [&](auto view) {
    return LayerNormForward{view(x),    view(weight), view(bias), view(out),
                            view(mean), view(rstd),   1e-5};
  });
  run_both(host::layernorm_backward, [&](auto view) {
    return LayerNormBackward{view(dout), view(x),  view(weight),  view(mean),
                             view(rstd), view(dx), view(dweight), view(dbias)};
  });
  for (Twin* twin : {&out, &mean, &rstd, &dx, &dweight, &dbias}) twin->expect_rounded("layer norm");
}

TEST_P(HalfStorage, GeluAndBias) {
  Twin x = half({kT, kH}), out = half({kT, kH}), dout = half({kT, kH}),
       dbias = accumulation_type({kH});
  run_both(host::gelu_forward, [&](auto view) { return GeluForward{view(x), view(out)}; });
  out.expect_rounded("out");
  // The bias's gradient sums the gradient as it is stored.
  Twin unused = accumulation_type({kH});
  host::gelu_backward({dout.stored(), x.stored(), dout.stored(), dbias.stored()});
  host::gelu_backward({dout.single(), x.single(), dout.single(), unused.single()});
  dout.expect_rounded("dx in place of dout");
  host::bias_gradient({dout.stored(), dbias.single()});
  dbias.expect_rounded("dbias");
  Twin sum = accumulation_type({kH});
  run_both(host::bias_gradient, [&](auto view) { return BiasGradient{view(x), view(sum)}; });
  sum.expect_rounded("column sums");
}

TEST_P(HalfStorage, Dropout) {
  Twin x = half({kS, kB, kH}), bias = half({kH}), residual = half({kS, kB, kH});
  Twin dx = half({kS, kB, kH});
  run_both(host::dropout_backward, [&](auto view) {
    return DropoutBackward{view(x), view(dx), kDropout};
  });
  dx.expect_rounded("dx");
  run_both(host::bias_dropout_residual, [&](auto view) {
    return BiasDropoutResidual{view(x), view(bias), view(residual), view(residual), kDropout};
  });
  residual.expect_rounded("out in place of the residual");
}

TEST_P(HalfStorage, Attention) {
  constexpr std::int64_t kHeads = 3;
  Twin qkv = half({kS, kB, 3 * kH}), out = half({kS, kB, kH}),
       lse = accumulation_type({kB, kHeads, kS});
  Twin dout = half({kS, kB, kH}), dqkv = half({kS, kB, 3 * kH});
  run_both(host::attention_forward, [&](auto view) {
    return AttentionForward{view(qkv), view(out), view(lse), kHeads, 1, kDropout};
  });
  out.expect_rounded("out");
  lse.expect_rounded("lse");
  // From here on both start from the stored output.
  convert_to_float(out.stored().data, kT * kH, GetParam(), out.single().as<float>());
  run_both(host::attention_backward, [&](auto view) {
    return AttentionBackward{view(dout), view(qkv), view(out), view(lse),
                             view(dqkv), kHeads,    1,         kDropout};
  });
  dqkv.expect_rounded("dqkv");
}

TEST_P(HalfStorage, CrossEntropy) {
  constexpr std::int64_t kColumns = 10;
  const std::vector<std::int32_t> labels = {4, -1, 13, 2, 7};
  Twin logits = half({5, 16}, 3), max = accumulation_type({5}), sum = accumulation_type({5}),
       target = accumulation_type({5});
  run_both(host::cross_entropy_statistics_backward, [&](auto view) {
    return CrossEntropyStatisticsBackward{
        {view(logits), 2, kColumns, labels.data(), view(max), view(sum), view(target)}, 1024};
  });
  for (Twin* twin : {&logits, &max, &sum, &target}) twin->expect_rounded("cross entropy");
}

TEST_P(HalfStorage, OptimizerKeepsACopy) {
  Twin weight = accumulation_type({50}), gradient = accumulation_type({50}),
       m = accumulation_type({50}), v = accumulation_type({50});
  Twin copy = half({50}), rounded = half({50});
  std::fill_n(v.stored().as<float>(), 50, 1.0f);
  host::adamw({.weight = weight.stored(),
               .gradient = gradient.stored(),
               .m = m.stored(),
               .v = v.stored(),
               .copy = copy.stored(),
               .learning_rate = 0.1});
  host::cast({.x = weight.stored(), .out = rounded.stored()});
  EXPECT_EQ(std::memcmp(copy.stored().data, rounded.stored().data, 100), 0);
  std::copy_n(weight.stored().as<float>(), 50, rounded.single().as<float>());
  rounded.expect_rounded("copy");
  // And back: nothing is lost.
  Twin widened = accumulation_type({50});
  host::cast({.x = copy.stored(), .out = widened.stored()});
  host::cast({.x = widened.stored(), .out = rounded.stored()});
  EXPECT_EQ(std::memcmp(copy.stored().data, rounded.stored().data, 100), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, HalfStorage, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

}  // namespace
}  // namespace trireme::kernels
