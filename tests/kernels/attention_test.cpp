#include "kernels/attention.hpp"

#include <limits>

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

struct Case {
  std::int64_t s, b, heads, d;
  std::int64_t kv_heads = 0;

  std::int64_t kv() const { return kv_heads > 0 ? kv_heads : heads; }
  std::int64_t columns() const { return (heads + 2 * kv()) * d; }
};

constexpr std::int64_t kFirstHead = 3;

Dropout dropout_of(double probability) {
  return {probability, 11, &kFirstSample, 2, DropoutSite::attention};
}

// Factor of one probability, straight from the definition of AttentionMask.
double factor(const Dropout& dropout, std::int64_t s, std::int64_t j, std::int64_t head,
              std::int64_t query, std::int64_t key) {
  if (dropout.probability == 0.0) return 1.0;
  const AttentionMask mask{
      {dropout.seed, kFirstSample + static_cast<std::uint64_t>(j), dropout.layer, dropout.site}};
  const auto element = static_cast<std::uint64_t>((head * s + query) * s + key);
  const Philox4 words = mask.words(element / 8);
  const std::uint32_t word = std::array{words.x, words.y, words.z, words.w}[element % 8 / 2];
  const std::uint32_t bits = element % 2 == 0 ? word & 0xFFFF : word >> 16;
  const double threshold = std::floor(dropout.probability * 65536 + 0.5);
  return bits < threshold ? 0.0 : 1.0 / (1.0 - threshold / 65536);
}

template <typename T>
struct Problem {
  Case size;
  Dropout dropout;
  bool causal;
  std::vector<std::int32_t> document_start;  // [b, s], or empty
  std::vector<std::int32_t> lengths;         // [b], or empty
  Owned<T> qkv, out, lse, dout, dqkv;

  Problem(Case size, double probability, bool causal = true)
      : size(size),
        dropout(dropout_of(probability)),
        causal(causal),
        qkv(Owned<T>::random({size.s, size.b, size.columns()}, 1)),
        out({size.s, size.b, size.heads * size.d}),
        lse({size.b, size.heads, size.s}),
        dout(Owned<T>::random({size.s, size.b, size.heads * size.d}, 2)),
        dqkv({size.s, size.b, size.columns()}) {}

  void forward() {
    host::attention_forward({qkv.tensor(), out.tensor(), lse.tensor(), size.heads, kFirstHead,
                             dropout, causal, starts(), given_lengths(), size.kv_heads});
  }
  void backward() {
    host::attention_backward({dout.tensor(), qkv.tensor(), out.tensor(), lse.tensor(),
                              dqkv.tensor(), size.heads, kFirstHead, dropout, causal, starts(),
                              given_lengths(), size.kv_heads});
  }
  const std::int32_t* given_lengths() const { return lengths.empty() ? nullptr : lengths.data(); }
  // Tokens of sample j before its padding.
  std::int64_t length(std::int64_t j) const { return lengths.empty() ? size.s : lengths[j]; }
  const std::int32_t* starts() const {
    return document_start.empty() ? nullptr : document_start.data();
  }
  std::int64_t first_key(std::int64_t j, std::int64_t query) const {
    return document_start.empty() ? 0 : document_start[j * size.s + query];
  }
  // Documents of `length` tokens, each sample's shifted by its number.
  void cut_documents(std::int64_t length) {
    document_start.clear();
    for (std::int64_t j = 0; j < size.b; ++j)
      for (std::int64_t q = 0; q < size.s; ++q)
        document_start.push_back(
            static_cast<std::int32_t>(std::max<std::int64_t>(0, q - (q + j) % length)));
  }

  // Index of element c of query head i's `part` (0 q, 1 k, 2 v) of position t.
  std::int64_t at(std::int64_t t, std::int64_t j, std::int64_t i, int part, std::int64_t c) const {
    const std::int64_t kv_head = i / (size.heads / size.kv());
    const std::int64_t head = part == 0 ? i : size.heads + (part - 1) * size.kv() + kv_head;
    return (t * size.b + j) * size.columns() + head * size.d + c;
  }
};

struct Expected {
  std::vector<double> out, lse, dqkv;
};

// Plain attention with all probabilities of a row at hand, and its gradient by the chain rule.
template <typename T>
Expected reference(const Problem<T>& p) {
  const std::int64_t s = p.size.s, b = p.size.b, heads = p.size.heads, d = p.size.d;
  Expected e{std::vector<double>(s * b * heads * d), std::vector<double>(b * heads * s),
             std::vector<double>(s * b * p.size.columns())};
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (std::int64_t j = 0; j < b; ++j)
    for (std::int64_t i = 0; i < heads; ++i)
      for (std::int64_t q = 0; q < p.length(j); ++q) {
        const std::int64_t first = p.first_key(j, q), keys = p.causal ? q + 1 : p.length(j);
        std::vector<double> score(keys), probability(keys), dprobability(keys);
        double sum = 0, delta = 0;
        for (std::int64_t k = first; k < keys; ++k) {
          for (std::int64_t c = 0; c < d; ++c)
            score[k] += p.qkv[p.at(q, j, i, 0, c)] * p.qkv[p.at(k, j, i, 1, c)] * scale;
          sum += std::exp(score[k]);
        }
        e.lse[(j * heads + i) * s + q] = std::log(sum);
        for (std::int64_t k = first; k < keys; ++k) {
          probability[k] = std::exp(score[k]) / sum;
          const double mask = factor(p.dropout, s, j, kFirstHead + i, q, k);
          for (std::int64_t c = 0; c < d; ++c) {
            const std::int64_t o = (q * b + j) * heads * d + i * d + c, v = p.at(k, j, i, 2, c);
            e.out[o] += probability[k] * mask * p.qkv[v];
            e.dqkv[v] += probability[k] * mask * p.dout[o];
            dprobability[k] += mask * p.dout[o] * p.qkv[v];
          }
          delta += probability[k] * dprobability[k];
        }
        for (std::int64_t k = first; k < keys; ++k)
          for (std::int64_t c = 0; c < d; ++c) {
            const double dscore = probability[k] * (dprobability[k] - delta) * scale;
            e.dqkv[p.at(q, j, i, 0, c)] += dscore * p.qkv[p.at(k, j, i, 1, c)];
            e.dqkv[p.at(k, j, i, 1, c)] += dscore * p.qkv[p.at(q, j, i, 0, c)];
          }
      }
  return e;
}

template <typename T>
class AttentionTest : public ::testing::Test {};
TYPED_TEST_SUITE(AttentionTest, StorageTypes);

TYPED_TEST(AttentionTest, MatchesPlainAttention) {
  using T = TypeParam;
  for (const Case size : {Case{1, 1, 1, 1}, Case{7, 2, 3, 5}, Case{33, 3, 1, 80}, Case{64, 1, 2, 8},
                          Case{130, 1, 2, 16}, Case{33, 2, 6, 8, 2}, Case{70, 1, 4, 5, 1}})
    for (const double probability : {0.0, 0.2})
      for (const bool causal : {true, false}) {
        Problem<T> p(size, probability, causal);
        const Expected e = reference(p);
        p.forward();
        p.backward();
        expect_close("out", p.out, e.out, tolerance<T>(1e-6));
        expect_close("lse", p.lse, e.lse, tolerance<T>(1e-6));
        expect_close("dqkv", p.dqkv, e.dqkv, tolerance<T>(3e-6));
      }
}

TYPED_TEST(AttentionTest, StaysWithinDocuments) {
  using T = TypeParam;
  for (const Case size : {Case{7, 2, 3, 5}, Case{130, 3, 2, 16}})
    for (const std::int64_t length : {1, 3, 70})
      for (const bool causal : {true, false}) {
        Problem<T> p(size, 0.2, causal);
        p.cut_documents(length);
        const Expected e = reference(p);
        p.forward();
        p.backward();
        expect_close("out", p.out, e.out, tolerance<T>(1e-6));
        expect_close("lse", p.lse, e.lse, tolerance<T>(1e-6));
        expect_close("dqkv", p.dqkv, e.dqkv, tolerance<T>(3e-6));
      }
}

// Padding has no output and no gradient, whatever its queries, keys and values are.
TYPED_TEST(AttentionTest, SkipsPadding) {
  using T = TypeParam;
  for (const Case size : {Case{7, 3, 3, 5}, Case{130, 3, 2, 16}, Case{7, 3, 4, 5, 2}})
    for (const bool causal : {true, false}) {
      Problem<T> p(size, 0.2, causal);
      p.lengths = {static_cast<std::int32_t>(size.s), 0, static_cast<std::int32_t>(size.s / 2 + 1)};
      for (std::int64_t t = p.lengths[2]; t < size.s; ++t)
        for (std::int64_t c = 0; c < size.columns(); ++c)
          p.qkv[(t * size.b + 2) * size.columns() + c] =
              static_cast<T>(std::numeric_limits<float>::quiet_NaN());
      const Expected e = reference(p);
      p.forward();
      p.backward();
      expect_close("out", p.out, e.out, tolerance<T>(1e-6));
      expect_close("lse", p.lse, e.lse, tolerance<T>(1e-6));
      expect_close("dqkv", p.dqkv, e.dqkv, tolerance<T>(3e-6));
    }
}

TYPED_TEST(AttentionTest, ThreadsChangeNothing) {
  using T = TypeParam;
  expect_threads_change_nothing<T>("out", [] {
    Problem<T> p({70, 2, 3, 12}, 0.2);
    p.forward();
    return p.out;
  });
  expect_threads_change_nothing<T>("dqkv", [] {
    Problem<T> p({70, 2, 6, 12, 3}, 0.2);
    p.forward();
    p.backward();
    return p.dqkv;
  });
}

TEST(Attention, GradientMatchesFiniteDifferences) {
  for (const Case size :
       {Case{1, 1, 1, 1}, Case{6, 2, 2, 3}, Case{67, 1, 1, 2}, Case{6, 1, 4, 3, 2}})
    for (const double probability : {0.0, 0.3})
      for (const bool causal : {true, false}) {
        Problem<double> p(size, probability, causal);
        p.forward();
        p.backward();
        if (size.s == 1) {  // one key: its probability is 1 whatever the scores
          EXPECT_NEAR(p.dqkv[0], 0.0, 1e-12);
          EXPECT_NEAR(p.dqkv[1], 0.0, 1e-12);
        }
        expect_gradient("dqkv", p.qkv, p.dqkv, [&] {
          p.forward();
          return dot(p.out, p.dout);
        });
      }
}

TYPED_TEST(AttentionTest, StaysFiniteForExtremeScores) {
  using T = TypeParam;
  Problem<T> p({33, 1, 1, 4}, 0.0);
  for (std::int64_t i = 0; i < p.qkv.size(); ++i) p.qkv[i] *= T{100};
  p.forward();
  p.backward();
  for (std::int64_t i = 0; i < p.out.size(); ++i) ASSERT_TRUE(std::isfinite(p.out[i])) << i;
  for (std::int64_t i = 0; i < p.dqkv.size(); ++i) ASSERT_TRUE(std::isfinite(p.dqkv[i])) << i;
}

TEST(Attention, RefusesUnevenHeads) {
  Owned<float> qkv({2, 1, 12}, 0.0), out({2, 1, 4}, 0.0);
  Owned<float> lse({1, 3, 2});
  EXPECT_THROW(host::attention_forward({qkv.tensor(), out.tensor(), lse.tensor(), 3}),
               InternalError);
}

// The known answer of Random123 for philox4x32 with seven rounds, key and counter 0.
TEST(AttentionMask, DrawsSevenRoundsOfPhilox) {
  const Philox4 words = AttentionMask{}.words(0);
  EXPECT_EQ(words.x, 0x5f6fb709u);
  EXPECT_EQ(words.y, 0x0d893f64u);
  EXPECT_EQ(words.z, 0x4f121f81u);
  EXPECT_EQ(words.w, 0x4f730a48u);
}

TEST(AttentionMask, DropsTheShareThatItsThresholdSays) {
  constexpr std::uint64_t kBlocks = 1 << 17;
  const AttentionMask mask{{7, 12345, 3, DropoutSite::attention}, attention_threshold(0.1)};
  double dropped = 0;
  for (std::uint64_t block = 0; block < kBlocks; ++block) {
    const Philox4 words = mask.words(block);
    const std::array all{words.x, words.y, words.z, words.w};
    for (std::uint64_t i = 0; i < 8; ++i)
      dropped += AttentionMask::bits(all[i / 2], i) < mask.threshold;
  }
  const double n = 8.0 * kBlocks, p = mask.threshold / 65536.0;
  EXPECT_NEAR(dropped, n * p, 4 * std::sqrt(n * p * (1 - p)));
  EXPECT_DOUBLE_EQ(attention_kept(mask.threshold), 1 / (1 - p));
}

}  // namespace
}  // namespace trireme::kernels
