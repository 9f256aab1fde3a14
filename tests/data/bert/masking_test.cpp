#include "data/bert/sample.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "bert/bert_samples.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t kSequence = 128, kIds = 1000;
constexpr int kContinues = 4;  // a quarter of the ids continue a word

/// A full sample of random ids of words and continuations, but no special ones.
SegmentPair make_pair(NumpyRandom& random) {
  SegmentPair pair;
  for (auto* segment : {&pair.a, &pair.b})
    for (int i = 0; i < 62; ++i)
      segment->push_back(10 + static_cast<std::int32_t>(random.interval(kIds - 11)));
  return pair;
}

/// Pearson's statistic of `counts` against `shares` of their sum.
double chi_square(const std::vector<double>& counts, const std::vector<double>& shares) {
  double total = 0, sum = 0;
  for (const double count : counts) total += count;
  for (std::size_t i = 0; i < counts.size(); ++i)
    sum += std::pow(counts[i] - total * shares[i], 2) / (total * shares[i]);
  return sum;
}

// Chi-square that is exceeded with a probability of 1e-4 at 2, 123 and 998 degrees of freedom.
constexpr double kLimit2 = 18.42, kLimit123 = 190, kLimit998 = 1170;

struct Statistics {
  std::vector<double> kinds = std::vector<double>(3);  ///< [MASK], kept, random
  std::vector<double> replacements = std::vector<double>(kIds);
  std::vector<double> positions = std::vector<double>(kSequence);
  double masked = 0, tokens = 0;
};

template <typename Mask>
Statistics mask_samples(int samples, Mask&& mask) {
  BertFormat format{.sequence = kSequence, .vocabulary = make_vocabulary(kIds, kContinues)};
  NumpyRandom content(7);
  Statistics statistics;
  SampleBuffer buffer(kSequence);
  BertSample sample(buffer.tensors);
  for (int i = 0; i < samples; ++i) {
    const SegmentPair pair = make_pair(content);
    join_segments(pair, format, sample);
    const std::vector<std::int32_t> original(sample.tokens.begin(), sample.tokens.end());
    mask(format, i, sample);
    for (std::int64_t at = 0; at < sample.length; ++at) {
      const std::int32_t token = sample.tokens[at], label = sample.labels[at];
      ++statistics.tokens;
      if (label == kIgnoredLabel) {
        EXPECT_EQ(token, original[at]);
        continue;
      }
      EXPECT_EQ(label, original[at]);
      EXPECT_TRUE(label != 1 && label != 2) << "a special token is masked";
      ++statistics.masked;
      ++statistics.positions[at];
      // A random id may be that of [MASK] or the token itself: 1 in kIds.
      ++statistics.kinds[token == 3 ? 0 : token == label ? 1 : 2];
      if (token != 3 && token != label) ++statistics.replacements[token];
    }
  }
  return statistics;
}

// 80 %, 10 % and 10 %, and of the random ids 1 in kIds is [MASK] and 1 the token.
const std::vector<double> kKinds = {0.8 + 0.1 / kIds, 0.1 + 0.1 / kIds, 0.1 - 0.2 / kIds};

void expect_uniform_replacements(const Statistics& statistics) {
  std::vector<double> counts = statistics.replacements;
  counts.erase(counts.begin() + 3);  // [MASK]
  EXPECT_LT(chi_square(counts, std::vector<double>(counts.size(), 1.0 / counts.size())), kLimit998);
}

TEST(MaskNgrams, HasThePapersProbabilities) {
  const Statistics statistics =
      mask_samples(20000, [](const BertFormat& format, int i, BertSample& sample) {
        NumpyRandom random(static_cast<std::uint32_t>(i));
        mask_ngrams(format, kSequence - 3, random, sample);
        const auto masked = std::ranges::count_if(sample.labels, [](auto id) { return id >= 0; });
        EXPECT_LE(masked, 18);  // floor(0.15 * 125)
      });
  EXPECT_LT(chi_square(statistics.kinds, kKinds), kLimit2);
  expect_uniform_replacements(statistics);
  // Every sample reaches its 18 unless the last word is too long for what is left.
  EXPECT_NEAR(statistics.masked / 20000, 18, 0.1);
}

TEST(MaskNgrams, DrawsTheLengthsOfNgrams) {
  // Few n-grams of single-piece words in a long sample: runs of masked tokens are n-grams, but for
  // a few neighbours and the last one, which is cut to the limit.
  constexpr std::int64_t kLong = 8192;
  const BertFormat format{
      .sequence = kLong, .mask_probability = 0.01, .vocabulary = make_vocabulary(kIds, kIds * 2)};
  SampleBuffer buffer(kLong);
  BertSample sample(buffer.tensors);
  std::array<double, 4> runs{};
  double all = 0;
  for (std::uint32_t i = 0; i < 400; ++i) {
    join_segments({std::vector<std::int32_t>(kLong - 4, 50), {60}}, format, sample);
    NumpyRandom random(i);
    mask_ngrams(format, kLong - 3, random, sample);
    std::size_t run = 0;
    for (const std::int32_t label : sample.labels) {
      if (label < 0 && run > 0) {
        ++runs[std::min<std::size_t>(run, 4) - 1];
        ++all;
      }
      run = label < 0 ? 0 : run + 1;
    }
  }
  EXPECT_NEAR(runs[0] / all, 6.0 / 11, 0.03);
  EXPECT_NEAR(runs[1] / all, 3.0 / 11, 0.03);
  EXPECT_NEAR(runs[2] / all, 2.0 / 11, 0.03);
  EXPECT_LT(runs[3] / all, 0.03);
}

TEST(MaskNgrams, NeverSplitsAWord) {
  BertFormat format{.sequence = kSequence, .vocabulary = make_vocabulary(kIds, 2)};
  SampleBuffer buffer(kSequence);
  BertSample sample(buffer.tensors);
  NumpyRandom content(11);
  for (int i = 0; i < 2000; ++i) {
    join_segments(make_pair(content), format, sample);
    const std::vector<std::int32_t> original(sample.tokens.begin(), sample.tokens.end());
    NumpyRandom random(static_cast<std::uint32_t>(i));
    mask_ngrams(format, kSequence - 3, random, sample);
    // A continuation is masked exactly if the piece before it is, [SEP] aside.
    std::int64_t before = -1;
    for (std::int64_t at = 0; at < sample.length; ++at) {
      if (original[at] == 1 || original[at] == 2) continue;
      if (original[at] % 2 == 0 && before >= 0) {
        EXPECT_EQ(sample.labels[at] >= 0, sample.labels[before] >= 0) << "sample " << i;
      }
      before = at;
    }
  }
}

TEST(MaskTokens, HasTheFirstReleasesProbabilities) {
  const Statistics statistics =
      mask_samples(20000, [](const BertFormat& format, int i, BertSample& sample) {
        PythonRandom random(static_cast<std::uint64_t>(i));
        mask_tokens(format, random, sample);
        EXPECT_EQ(std::ranges::count_if(sample.labels, [](auto id) { return id >= 0; }), 19);
      });
  EXPECT_LT(chi_square(statistics.kinds, kKinds), kLimit2);
  expect_uniform_replacements(statistics);
  // Every position but [CLS] and the two [SEP] alike.
  std::vector<double> counts;
  for (std::int64_t at = 1; at < 126; ++at)
    if (at != 63) counts.push_back(statistics.positions[at]);
  EXPECT_EQ(statistics.positions[0] + statistics.positions[63] + statistics.positions[126], 0);
  EXPECT_LT(chi_square(counts, std::vector<double>(124, 1.0 / 124)), kLimit123);
  EXPECT_NEAR(statistics.masked / statistics.tokens, 0.15, 0.001);
}

// random.Random(5): randint(0, 10), random(), shuffle(range(6)), choice(range(1000));
// random.Random(2**40 + 3): random().
TEST(PythonRandom, DrawsAsPythonDoes) {
  PythonRandom random(5);
  EXPECT_EQ(random.between(0, 10), 9);
  EXPECT_EQ(random.uniform(), 0.2554450164868458);
  std::vector<int> values = {0, 1, 2, 3, 4, 5};
  random.shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<int>{5, 3, 1, 0, 4, 2}));
  EXPECT_EQ(random.below(1000), 664u);
  EXPECT_EQ(PythonRandom((std::uint64_t{1} << 40) + 3).uniform(), 0.21978710637116716);
}

}  // namespace
}  // namespace trireme::data
