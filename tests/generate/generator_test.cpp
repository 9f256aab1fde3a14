#include "generate/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"
#include "tiny_gpt.hpp"

namespace trireme::generate {
namespace {

using Ids = std::vector<std::int32_t>;

class GeneratorTest : public testing::Test {
 protected:
  Ids generate(const Ids& prompt, const Request& request, std::uint64_t sample = 0) {
    return Generator(decoder_, request).generate(prompt, sample).ids;
  }

  TinyGpt gpt_;
  Decoder decoder_{*gpt_.backend, gpt_.parameters, gpt_.spec};
};

TEST_F(GeneratorTest, GreedyTakesTheMostLikelyTokenAtEachStep) {
  Ids context = {4, 8};
  const Ids ids = generate(context, {.tokens = 10, .sampling = {.greedy = true}});
  Decoder fresh(*gpt_.backend, gpt_.parameters, gpt_.spec);
  for (const std::int32_t id : ids) {
    const auto logits = fresh.logits(context);
    ASSERT_EQ(id, std::max_element(logits.begin(), logits.end()) - logits.begin());
    context.push_back(id);
  }
}

TEST_F(GeneratorTest, SeedsAndSampleNumbersDecideEverything) {
  const Request request{.tokens = 16, .sampling = {.temperature = 3.0, .seed = 1}};
  std::set<Ids> different;
  std::vector<Ids> in_order;
  for (std::uint64_t sample = 0; sample < 4; ++sample) {
    in_order.push_back(generate({5, 6}, request, sample));
    different.insert(in_order.back());
  }
  EXPECT_EQ(different.size(), 4u);
  // In another order, with another prompt in between, by another generator: the same.
  Decoder fresh(*gpt_.backend, gpt_.parameters, gpt_.spec);
  Generator generator(fresh, request);
  for (std::uint64_t sample = 4; sample-- > 0;) {
    generator.generate(Ids{1, 2, 3}, sample);
    EXPECT_EQ(generator.generate(Ids{5, 6}, sample).ids, in_order[sample]) << "sample " << sample;
  }
  Request other = request;
  other.sampling.seed = 2;
  EXPECT_NE(generate({5, 6}, other), in_order[0]);
}

TEST_F(GeneratorTest, ARandomNumberBelongsToItsPosition) {
  // Continuing what was generated gives what would have been generated.
  const Request request{.tokens = 12, .sampling = {.temperature = 2.0}};
  const Ids whole = generate({5, 6}, request);
  Ids prompt = {5, 6};
  prompt.insert(prompt.end(), whole.begin(), whole.begin() + 5);
  EXPECT_EQ(generate(prompt, {.tokens = 7, .sampling = request.sampling}),
            Ids(whole.begin() + 5, whole.end()));
}

TEST_F(GeneratorTest, TheLimitsOfTheFiltersAreGreedy) {
  const Ids greedy = generate({7, 1}, {.tokens = 15, .sampling = {.greedy = true}});
  EXPECT_EQ(generate({7, 1}, {.tokens = 15, .sampling = {.top_k = 1}}), greedy);
  EXPECT_EQ(generate({7, 1}, {.tokens = 15, .sampling = {.top_p = 1e-9}}), greedy);
  EXPECT_EQ(generate({7, 1}, {.tokens = 15, .sampling = {.temperature = 1e-9}}), greedy);
  EXPECT_NE(generate({7, 1}, {.tokens = 15, .sampling = {.temperature = 10.0}}), greedy);
}

TEST_F(GeneratorTest, StopsWhereTheDocumentEnds) {
  const Ids free = generate({2}, {.tokens = 10, .sampling = {.greedy = true}});
  const std::int32_t eod = free[4];
  const auto first = std::find(free.begin(), free.end(), eod);
  const Continuation ended =
      Generator(decoder_, {.tokens = 10, .sampling = {.greedy = true}, .eod = eod})
          .generate(Ids{2});
  EXPECT_EQ(ended.stop, Stop::eod);
  EXPECT_EQ(ended.ids, Ids(free.begin(), first));
}

TEST_F(GeneratorTest, StopsAtTheContextsEndAndSaysSo) {
  const auto stop = [&](std::int64_t tokens) {
    const Continuation result = Generator(decoder_, {.tokens = tokens}).generate(Ids(20, 1));
    return std::pair(result.ids.size(), name_of(result.stop));
  };
  EXPECT_EQ(stop(3), std::pair(std::size_t{3}, std::string_view("tokens")));
  EXPECT_EQ(stop(4), std::pair(std::size_t{4}, std::string_view("tokens")));
  EXPECT_EQ(stop(5), std::pair(std::size_t{4}, std::string_view("context")));
  EXPECT_EQ(stop(INT64_MAX), std::pair(std::size_t{4}, std::string_view("context")));
}

TEST_F(GeneratorTest, ChoosesOnlyBelowTheVocabularyAskedFor) {
  const Request request{.tokens = 20, .sampling = {.temperature = 50.0}, .vocab = 5};
  for (std::uint64_t sample = 0; sample < 5; ++sample)
    for (const std::int32_t id : generate({30}, request, sample)) EXPECT_LT(id, 5);
}

TEST_F(GeneratorTest, RefusesPromptsThatDoNotFit) {
  Generator generator(decoder_, {});
  EXPECT_NO_THROW(generator.check_prompt(Ids(23, 1)));
  try {
    generator.generate(Ids(24, 1));
    FAIL() << "a prompt as long as the context was accepted";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "the prompt has 24 tokens, but the model's context holds 24 (model.positions), of "
                 "which one at least is for the continuation");
  }
  EXPECT_THROW(generator.generate(Ids{}), UsageError);
}

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

TEST(Sampling, MinPKeepsTokensNearTheMostLikely) {
  const auto logits = logs(kProbabilities);
  EXPECT_EQ(chosen_ids(logits, {.min_p = 0.6}), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(chosen_ids(logits, {.min_p = 1.0}), (std::set<std::int32_t>{1}));
  // After the temperature: squares of the probabilities, 0.4 of the largest.
  EXPECT_EQ(chosen_ids(logits, {.temperature = 0.5, .min_p = 0.3}), (std::set<std::int32_t>{1, 3}));
  const std::vector<double> expected = {0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85};
  EXPECT_LT(chi_square(count_draws(logits, {.min_p = 0.45}), expected), kChiSquareLimit);
}

TEST(Sampling, RepetitionsArePenalizedOnce) {
  std::vector<double> logits = {2.0, -1.0, 3.0, 0.5};
  penalize_repetition(logits, Ids{0, 1, 0, 1, 99}, 2.0);
  EXPECT_EQ(logits, (std::vector<double>{1.0, -2.0, 3.0, 0.5}));
  // Drawn from the softmax of the penalized logits.
  const Request request{.sampling = {.repetition_penalty = 1.5}, .vocab = 5};
  const auto raw = logs(kProbabilities);
  std::vector<double> expected = raw;
  penalize_repetition(expected, Ids{1, 3}, 1.5);
  double sum = 0.0;
  for (double& x : expected) sum += x = std::exp(x);
  for (double& x : expected) x /= sum;
  std::vector<int> counts(5);
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<double> copy = raw;
    ++counts[next_token(copy, Ids{1, 3}, request, draw).score.id];
  }
  EXPECT_LT(chi_square(counts, expected), kChiSquareLimit);
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
      } catch (const CodedError<ExitCode::diverged>& error) {
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
  EXPECT_EQ(refusal({.min_p = 2.0}), "--min-p 2: expected a number from 0 (no limit) to 1");
  EXPECT_EQ(refusal({.repetition_penalty = 0.0}),
            "--repetition-penalty 0: expected a number above 0 (1: none)");
  EXPECT_NE(refusal({.top_p = std::nan("")}), "");
  EXPECT_EQ(refusal({.seed = 4294967295}), "");
  EXPECT_EQ(refusal({.seed = 4294967296}), "--seed 4294967296: expected 0 to 4294967295");
}

TEST(ContinuationText, IsWhatFollowsThePrompt) {
  const auto tokenizer = tokenizer::make_tokenizer({.type = "bytes"});
  EXPECT_EQ(continuation_text(*tokenizer, tokenizer->encode("In the"), tokenizer->encode(" end")),
            " end");
  EXPECT_EQ(continuation_text(*tokenizer, {}, tokenizer->encode("x")), "x");
  EXPECT_EQ(continuation_text(*tokenizer, tokenizer->encode("x"), {}), "");
}

TEST(ContinuationText, ReplacesPartsOfCharacters) {
  const auto tokenizer = tokenizer::make_tokenizer({.type = "bytes"});
  // An accented e, then a euro sign cut after its second byte.
  EXPECT_EQ(continuation_text(*tokenizer, Ids{'a'}, Ids{0xC3, 0xA9, 0xE2, 0x82}),
            "\xC3\xA9\xEF\xBF\xBD");
  EXPECT_EQ(continuation_text(*tokenizer, Ids{'a'}, Ids{0x80, 'b'}),
            "\xEF\xBF\xBD"
            "b");
}

/// Decodes like WordPiece: a piece that starts with # joins the word before it, which then ends in
/// a capital, so that decoding the prompt alone gives another text.
class JoiningTokenizer : public tokenizer::Tokenizer {
 public:
  std::string_view name() const override { return "joining"; }
  std::int32_t vocab_size() const override { return 2; }
  std::optional<std::int32_t> eod() const override { return std::nullopt; }
  std::uint64_t hash() const override { return 0; }
  Ids encode(std::string_view) const override { return {}; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return ids.size() == 2 ? "AB" : ids[0] == 0 ? "a" : "b";
  }
};

TEST(ContinuationText, FallsBackToTheNewTokensAlone) {
  EXPECT_EQ(continuation_text(JoiningTokenizer(), Ids{0}, Ids{1}), "b");
}

TEST(ContinuationText, KeepsTheSpaceBetweenWords) {
  const std::filesystem::path gpt2 = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/data/gpt2";
  const auto tokenizer = tokenizer::make_tokenizer(
      {.type = "gpt2", .vocab = gpt2 / "vocab.json", .merges = gpt2 / "merges.txt"});
  const Ids prompt = tokenizer->encode("In the beginning");
  EXPECT_EQ(continuation_text(*tokenizer, prompt, tokenizer->encode(" God created")),
            " God created");
}

/// The pieces of `text`'s bytes, joined by "|", and the rest after "//".
std::string pieces(const std::string& text, std::vector<std::string> stops = {}) {
  const auto bytes = tokenizer::make_tokenizer({.type = "bytes"});
  TextStream stream(*bytes, bytes->encode("prompt"), std::move(stops));
  std::string joined;
  for (const char c : text) {
    const std::string piece = stream.push(static_cast<unsigned char>(c));
    if (!piece.empty()) joined += piece + "|";
    if (stream.stopped()) return joined + "stop";
  }
  return joined + "//" + stream.finish();
}

TEST(TextStream, KeepsBackPartsOfCharacters) {
  EXPECT_EQ(pieces("a\xC3\xA9z"), "a|\xC3\xA9|z|//");
  EXPECT_EQ(pieces("a\xE2\x82"), "a|//\xEF\xBF\xBD");
}

TEST(TextStream, LongTextsAreThoseOfAllTokensTogether) {
  const std::filesystem::path gpt2 = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/data/gpt2";
  const auto tokenizer = tokenizer::make_tokenizer(
      {.type = "gpt2", .vocab = gpt2 / "vocab.json", .merges = gpt2 / "merges.txt"});
  std::string written;
  for (int i = 0; i < 300; ++i)
    written += fmt::format(" word{} \xF0\x9F\x98\x80\xE4\xBD\xA0\xC3\xA9.", i * i);
  Ids prompt = tokenizer->encode(written), ids = prompt;
  // Ids in any order: most cuts are inside a character.
  for (std::size_t i = 0; i < ids.size(); ++i) std::swap(ids[i], ids[(i * 7919) % ids.size()]);
  ids.insert(ids.begin(), prompt.begin(), prompt.end());
  TextStream stream(*tokenizer, prompt);
  std::string joined;
  for (const std::int32_t id : ids) joined += stream.push(id);
  joined += stream.finish();
  EXPECT_EQ(joined, continuation_text(*tokenizer, prompt, ids));
  EXPECT_EQ(stream.text(), joined);
}

TEST(TextStream, KeepsBackWhatMayBeAStopString) {
  EXPECT_EQ(pieces("abcd", {"cx"}), "a|b|cd|//");
  EXPECT_EQ(pieces("abcxd", {"cx"}), "a|b|stop");
  EXPECT_EQ(pieces("aab", {"aab"}), "stop");
  EXPECT_EQ(pieces("xaaab", {"aab"}), "x|a|stop");
  EXPECT_EQ(pieces("ab", {"bc", ""}), "a|//b");
}

}  // namespace
}  // namespace trireme::generate
