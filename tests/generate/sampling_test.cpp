#include "generate/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"

namespace trireme::generate {
namespace {

constexpr int kDraws = 20000;

/// How often each id is chosen in kDraws draws.
std::vector<int> count_draws(const std::vector<double>& logits, const Sampling& sampling) {
  std::vector<int> counts(logits.size());
  for (int draw = 0; draw < kDraws; ++draw)
    ++counts[choose(logits, sampling, philox_uniform(3, 0, draw))];
  return counts;
}

/// Pearson's chi-square of the counts against probabilities; counts of probability 0 must be 0.
double chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  double sum = 0.0;
  for (std::size_t id = 0; id < counts.size(); ++id) {
    const double expected = probabilities[id] * kDraws;
    if (expected == 0.0)
      EXPECT_EQ(counts[id], 0) << "id " << id;
    else
      sum += (counts[id] - expected) * (counts[id] - expected) / expected;
  }
  return sum;
}

std::vector<double> logs(const std::vector<double>& probabilities) {
  std::vector<double> logits;
  for (const double p : probabilities) logits.push_back(std::log(p) + 3.0);
  return logits;
}

std::set<std::int32_t> chosen_ids(const std::vector<double>& logits, const Sampling& sampling) {
  std::set<std::int32_t> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(choose(logits, sampling, i / 1000.0));
  return ids;
}

// With 4 degrees of freedom chi-square exceeds 23.5 once in 10,000.
constexpr double kChiSquareLimit = 23.5;
const std::vector<double> kProbabilities = {0.1, 0.4, 0.05, 0.25, 0.2};

TEST(Sampling, FollowsTheSoftmax) {
  EXPECT_LT(chi_square(count_draws(logs(kProbabilities), {}), kProbabilities), kChiSquareLimit);
}

TEST(Sampling, TemperatureDividesTheLogits) {
  double sum = 0.0;
  std::vector<double> squared;
  for (const double p : kProbabilities) sum += p * p;
  for (const double p : kProbabilities) squared.push_back(p * p / sum);
  EXPECT_LT(chi_square(count_draws(logs(kProbabilities), {.temperature = 0.5}), squared),
            kChiSquareLimit);
}

TEST(Sampling, TopKKeepsTheMostLikelyInProportion) {
  const std::vector<double> expected = {0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85};
  EXPECT_LT(chi_square(count_draws(logs(kProbabilities), {.top_k = 3}), expected), kChiSquareLimit);
}

TEST(Sampling, TopPKeepsTheTokenThatCrossesTheThreshold) {
  const auto logits = logs(kProbabilities);
  EXPECT_EQ(chosen_ids(logits, {.top_p = 0.3}), (std::set<std::int32_t>{1}));
  EXPECT_EQ(chosen_ids(logits, {.top_p = 0.5}), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(chosen_ids(logits, {.top_p = 0.7}), (std::set<std::int32_t>{1, 3, 4}));
  EXPECT_EQ(chosen_ids(logits, {.top_p = 0.9}), (std::set<std::int32_t>{0, 1, 3, 4}));
  EXPECT_EQ(chosen_ids(logits, {.top_p = 1.0}), (std::set<std::int32_t>{0, 1, 2, 3, 4}));
  const std::vector<double> expected = {0, 0.4 / 0.65, 0, 0.25 / 0.65, 0};
  EXPECT_LT(chi_square(count_draws(logits, {.top_p = 0.5}), expected), kChiSquareLimit);
}

TEST(Sampling, TopPWorksOnWhatTopKLeft) {
  // Of 0.4 and 0.25 the first has 0.615: alone above 0.6, not above 0.65.
  const auto logits = logs(kProbabilities);
  EXPECT_EQ(chosen_ids(logits, {.top_k = 2, .top_p = 0.6}), (std::set<std::int32_t>{1}));
  EXPECT_EQ(chosen_ids(logits, {.top_k = 2, .top_p = 0.65}), (std::set<std::int32_t>{1, 3}));
}

TEST(Sampling, TinyTopPAndLargeTopKAreLimits) {
  const auto logits = logs(kProbabilities);
  EXPECT_EQ(chosen_ids(logits, {.top_p = 1e-300}), (std::set<std::int32_t>{1}));
  EXPECT_EQ(chosen_ids(logits, {.top_k = 1000}).size(), logits.size());
}

TEST(Sampling, GreedyTakesTheLowestOfEqualIds) {
  const std::vector<double> logits = {1.0, 5.0, -2.0, 5.0};
  for (const double uniform : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(choose(logits, {.greedy = true}, uniform), 1);
    EXPECT_EQ(choose(logits, {.top_k = 1}, uniform), 1);
    EXPECT_EQ(choose(logits, {.top_p = 1e-9}, uniform), 1);
  }
}

TEST(Sampling, LowTemperatureTendsToGreedy) {
  const std::vector<double> logits = {1.0, 5.0, 4.99, -300.0};
  for (const double temperature : {1e-4, 1e-30, 5e-324})
    for (const double uniform : {0.0, 0.5, 0x1.fffffffffffffp-1})
      EXPECT_EQ(choose(logits, {.temperature = temperature}, uniform), 1) << temperature;
  EXPECT_EQ(choose(logits, {.temperature = 1e300}, 0.76), 3) << "and a high one to uniform";
}

TEST(Sampling, NeverChoosesWhatHasNoProbability) {
  const std::vector<double> logits = {-1e300, 0.0, -1e300};
  EXPECT_EQ(chosen_ids(logits, {}), (std::set<std::int32_t>{1}));
  EXPECT_EQ(choose(logits, {}, 0x1.fffffffffffffp-1), 1);
}

TEST(Sampling, RefusesLogitsThatAreNotFinite) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const std::vector<double> logits = {0.0, bad};
    for (const Sampling& sampling : {Sampling{}, Sampling{.greedy = true}}) try {
        choose(logits, sampling, 0.5);
        FAIL() << "a logit of " << bad << " was accepted";
      } catch (const DataError& error) {
        EXPECT_STREQ(error.what(), "the model's logits are not finite: its training has diverged");
      }
  }
}

std::string refusal(const Sampling& sampling) {
  return message_of<UsageError>([&] { check_sampling(sampling); });
}

TEST(Sampling, RangesAreChecked) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.temperature = 0.1, .top_k = 5, .top_p = 0.5}), "");
  EXPECT_EQ(refusal({.temperature = 0.0}),
            "--temperature 0: expected a number above 0 (--greedy takes the most likely token)");
  EXPECT_NE(refusal({.temperature = std::nan("")}), "");
  EXPECT_NE(refusal({.temperature = std::numeric_limits<double>::infinity()}), "");
  EXPECT_EQ(refusal({.top_k = -1}), "--top-k -1: expected 0 (no limit) or more");
  EXPECT_EQ(refusal({.top_p = 1.5}),
            "--top-p 1.5: expected a number above 0 and at most 1 (no limit)");
  EXPECT_NE(refusal({.top_p = 0.0}), "");
  EXPECT_NE(refusal({.top_p = std::nan("")}), "");
}

}  // namespace
}  // namespace trireme::generate
