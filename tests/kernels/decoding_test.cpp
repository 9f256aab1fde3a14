#include "kernels/decoding.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernel_testing.hpp"
#include "kernels/attention.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class DecodingTest : public testing::Test {};
TYPED_TEST_SUITE(DecodingTest, StorageTypes);

// Two sequences in blocks of 4 positions, in no order; a prompt, then single tokens of both, with
// padding between them. Compared with attention over the whole sequences.
TYPED_TEST(DecodingTest, CachedAttentionEqualsThatOfWholeSequences) {
  using T = TypeParam;
  constexpr std::int64_t kLength = 14, kPositions = 4, kColumns = 4, kPrompt = 9;
  for (const auto& [heads, kv_heads, d] : {std::array<std::int64_t, 3>{3, 3, 5}, {6, 2, 8}}) {
    const std::int64_t width = (heads + 2 * kv_heads) * d;
    auto whole = Owned<T>::random({kLength, 2, width}, 1);  // [s, b, ...]
    Owned<T> expected({kLength, 2, heads * d}), lse({2, heads, kLength});
    host::attention_forward({.qkv = whole.tensor(),
                             .out = expected.tensor(),
                             .lse = lse.tensor(),
                             .heads = heads,
                             .kv_heads = kv_heads});
    const std::int64_t elements = kv_heads * kPositions * d;
    Owned<T> memory({2 * kColumns * 2 * elements});
    const std::vector<std::int32_t> table = {5, 0, 7, 2, 1, 6, 4, 3};
    const auto part = [&, kv_heads = kv_heads, d = d](std::int64_t first) {
      return memory.tensor().rows(first, elements).view({kv_heads, kPositions, d});
    };
    const KeyValueCache cache{part(0), part(elements), 2 * elements, table.data(), kColumns};
    const auto row_of = [&](std::int64_t t, std::int64_t j) {
      return whole.tensor().view({kLength * 2, width}).rows(t * 2 + j, 1);
    };
    const auto expect_row = [&, heads = heads, d = d](const Owned<T>& out, std::int64_t row,
                                                      std::int64_t t, std::int64_t j) {
      for (std::int64_t c = 0; c < heads * d; ++c)
        ASSERT_NEAR(out[row * heads * d + c], std::as_const(expected)[(t * 2 + j) * heads * d + c],
                    tolerance<T>(2e-6))
            << "position " << t << " of sequence " << j << ", element " << c;
    };
    for (std::int64_t j = 0; j < 2; ++j) {
      Owned<T> qkv({kPrompt, width}), out({kPrompt, heads * d});
      std::vector<std::int32_t> lines(kPrompt, static_cast<std::int32_t>(j)), positions(kPrompt);
      std::iota(positions.begin(), positions.end(), 0);
      for (std::int64_t t = 0; t < kPrompt; ++t)
        std::copy_n(row_of(t, j).template as<T>(), width,
                    qkv.tensor().template as<T>() + t * width);
      const CacheRows rows{lines.data(), positions.data()};
      host::cache_append({qkv.tensor(), cache, rows, heads, kv_heads});
      host::attention_paged({qkv.tensor(), cache, rows, out.tensor(), heads, kv_heads});
      for (std::int64_t t = 0; t < kPrompt; ++t) expect_row(out, t, t, j);
    }
    for (std::int64_t t = kPrompt; t < kLength; ++t) {
      Owned<T> qkv({3, width}, 0.0), out({3, heads * d});
      const std::vector<std::int32_t> lines = {1, -1, 0};
      const std::vector<std::int32_t> positions(3, static_cast<std::int32_t>(t));
      for (const auto& [row, j] : {std::pair(0, 1), std::pair(2, 0)})
        std::copy_n(row_of(t, j).template as<T>(), width,
                    qkv.tensor().template as<T>() + row * width);
      host::attention_paged({qkv.tensor(),
                             cache,
                             {lines.data(), positions.data()},
                             out.tensor(),
                             heads,
                             kv_heads,
                             true});
      expect_row(out, 0, t, 1);
      expect_row(out, 2, t, 0);
      for (std::int64_t c = 0; c < heads * d; ++c) EXPECT_EQ(out[heads * d + c], 0.0);
    }
  }
}

TYPED_TEST(DecodingTest, LinearIsWhatItsPartsAre) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 3, kIn = 20, kOut = 12;
  auto x = Owned<T>::random({kRows, kIn}, 1), weight = Owned<T>::random({2 * kOut, kIn}, 2);
  auto norm_weight = Owned<T>::random({kIn}, 3), norm_bias = Owned<T>::random({kIn}, 4);
  auto bias = Owned<T>::random({kOut}, 5), residual = Owned<T>::random({kRows, kOut}, 6);
  Owned<T> normalized({kRows, kIn}), mean({kRows}), rstd({kRows});
  host::layernorm_forward({.x = x.tensor(),
                           .weight = norm_weight.tensor(),
                           .bias = norm_bias.tensor(),
                           .out = normalized.tensor(),
                           .mean = mean.tensor(),
                           .rstd = rstd.tensor()});
  const auto dot = [&](std::int64_t row, std::int64_t o) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < kIn; ++i)
      sum += std::as_const(normalized)[row * kIn + i] * std::as_const(weight)[o * kIn + i];
    return sum;
  };
  const auto gelu = [](double v) { return 0.5 * v * std::erfc(-v / std::sqrt(2.0)); };
  const auto silu = [](double v) { return v / (1.0 + std::exp(-v)); };
  Owned<T> y({kRows, kOut}), gated({kRows, kOut});
  const DecodeNorm norm{norm_weight.tensor(), norm_bias.tensor()};
  host::decode_linear({.x = x.tensor(),
                       .weight = weight.tensor().rows(0, kOut),
                       .y = y.tensor(),
                       .norm = norm,
                       .bias = bias.tensor(),
                       .function = Activation::gelu,
                       .residual = residual.tensor()});
  host::decode_linear({.x = x.tensor(),
                       .weight = weight.tensor(),
                       .y = gated.tensor(),
                       .norm = norm,
                       .function = Activation::silu,
                       .gated = true});
  std::vector<double> expected, expected_gated;
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t o = 0; o < kOut; ++o) {
      expected.push_back(gelu(dot(row, o) + std::as_const(bias)[o]) +
                         std::as_const(residual)[row * kOut + o]);
      expected_gated.push_back(silu(dot(row, o)) * dot(row, kOut + o));
    }
  expect_close("y", y, expected, tolerance<T>(1e-6));
  expect_close("gated", gated, expected_gated, tolerance<T>(1e-6));
}

TYPED_TEST(DecodingTest, TopLogitsAreSortedWithTiesByColumn) {
  using T = TypeParam;
  constexpr std::int64_t kColumns = 300, kCount = 20;
  auto logits = Owned<T>::random({2, kColumns + 4}, 1);
  for (std::int64_t i = 0; i < kColumns; ++i) {
    logits[i] = static_cast<T>(i % 7);  // ties
    if (i % 50 == 3) logits[kColumns + 4 + i] = std::numeric_limits<T>::quiet_NaN();
  }
  for (std::int64_t i = kColumns; i < kColumns + 4; ++i) logits[i] = T{1000};  // padding
  Owned<T> values({2, kCount});
  std::vector<std::int32_t> ids(2 * kCount);
  host::top_logits({logits.tensor(), kColumns, values.tensor(), ids.data()});
  for (std::int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(ids[i], 6 + 7 * i);
    EXPECT_EQ(std::as_const(values)[i], 6.0);
  }
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(ids[kCount + i], 3 + 50 * i);
    EXPECT_TRUE(std::isnan(std::as_const(values)[kCount + i]));
  }
  for (std::int64_t i = 7; i < kCount; ++i)
    EXPECT_LE(std::as_const(values)[kCount + i], std::as_const(values)[kCount + i - 1]);
}

}  // namespace
}  // namespace trireme::kernels
