#include "generate/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

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

TEST_F(GeneratorTest, TheCacheDoesNotChangeTokens) {
  Decoder uncached(*gpt_.backend, gpt_.parameters, gpt_.spec, Cache::none);
  for (const Sampling& sampling : {Sampling{.greedy = true}, Sampling{.seed = 9}})
    for (const Ids& prompt : {Ids{3}, Ids{1, 2, 3, 4, 5}, Ids{36, 0, 36, 0}, Ids{9, 9}}) {
      const Request request{.tokens = 18, .sampling = sampling};
      const Ids ids = generate(prompt, request);
      EXPECT_EQ(ids.size(), 18u);
      EXPECT_EQ(ids, Generator(uncached, request).generate(prompt).ids);
    }
}

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

}  // namespace
}  // namespace trireme::generate
