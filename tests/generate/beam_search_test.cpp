#include "generate/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "generate/decoder.hpp"
#include "tiny_gpt.hpp"

namespace trireme::generate {
namespace {

using Ids = std::vector<std::int32_t>;

model::Gpt2Config few_words() {
  model::Gpt2Config config = TinyGpt::default_config();
  config.vocab = 5;
  return config;
}

/// Every continuation of `prompt` with at most `tokens` tokens, with its score.
void enumerate(Decoder& decoder, const Ids& prompt, const BeamOptions& options, Beam beam,
               std::vector<Beam>& all) {
  Ids context = prompt;
  context.insert(context.end(), beam.ids.begin(), beam.ids.end());
  const auto found = decoder.logits(context);
  const std::vector<double> logits(found.begin(), found.end());
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit);
  const double length = static_cast<double>(beam.ids.size()) + 1.0;
  for (std::int32_t id = 0; id < std::ssize(logits); ++id) {
    Beam longer = beam;
    longer.log_probability += logits[id] - std::log(sum);
    longer.score = longer.log_probability / std::pow(length, options.length_penalty);
    const bool ends = id == options.eod;
    if (!ends) longer.ids.push_back(id);
    longer.stop = ends ? Stop::eod : Stop::tokens;
    if (ends || std::ssize(longer.ids) == options.tokens)
      all.push_back(std::move(longer));
    else
      enumerate(decoder, prompt, options, std::move(longer), all);
  }
}

// With as many beams as there are partial continuations nothing is lost: the result is the best of
// all 4^3 + ... continuations.
TEST(BeamSearch, FindsTheBestOfAllContinuations) {
  TinyGpt gpt(few_words(), DType::f64);
  Decoder reference(*gpt.backend, gpt.parameters, gpt.spec);
  BatchDecoder decoder(*gpt.backend, gpt.parameters, gpt.spec,
                       {.sequences = 128, .pass_tokens = 128});
  for (const double penalty : {0.0, 1.0, 2.0})
    for (const Ids& prompt : {Ids{1}, Ids{3, 2, 0, 1}}) {
      const BeamOptions options{.beams = 64, .length_penalty = penalty, .tokens = 4, .eod = 4};
      std::vector<Beam> all;
      enumerate(reference, prompt, options, {}, all);
      std::ranges::stable_sort(all, std::greater(), &Beam::score);
      const auto found = beam_search(decoder, prompt, options);
      ASSERT_EQ(found.size(), 64u);
      // 64 beams hold all continuations of three tokens, and the likely ones of four.
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(found[i].ids, all[i].ids) << "rank " << i << ", penalty " << penalty;
        EXPECT_NEAR(found[i].score, all[i].score, 1e-9);
        EXPECT_EQ(found[i].stop, all[i].stop);
      }
    }
}

// Ids that the tokenizer does not have keep their probability, on every path.
TEST(LogProbabilities, AreAmongAllIdsOfTheModel) {
  TinyGpt gpt(TinyGpt::default_config(), DType::f64);
  Decoder reference(*gpt.backend, gpt.parameters, gpt.spec);
  BatchDecoder decoder(*gpt.backend, gpt.parameters, gpt.spec, {.sequences = 2, .pass_tokens = 3});
  const Ids prompt = {4, 8};
  const auto logits = reference.logits(prompt);
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit);
  const auto best = std::max_element(logits.begin(), logits.begin() + 5);
  const double expected = *best - std::log(sum);

  const Request request{.tokens = 1, .sampling = {.greedy = true}, .vocab = 5, .alternatives = 37};
  const ChosenToken alone = Generator(reference, request).generate(prompt).tokens.at(0);
  ChosenToken batched;
  BatchGenerator generator(decoder);
  generator.submit({.prompt = prompt, .request = request, .on_token = [&](const ChosenToken& each) {
                      batched = each;
                      return true;
                    }});
  while (generator.step()) {
  }
  for (const ChosenToken& token : {alone, batched}) {
    EXPECT_EQ(token.score.id, best - logits.begin());
    EXPECT_NEAR(token.score.log_probability, expected, 1e-9);
    ASSERT_EQ(token.alternatives.size(), 5u);
    EXPECT_NEAR(token.alternatives[0].log_probability, expected, 1e-9);
  }
  const auto beams = beam_search(decoder, prompt, {.beams = 1, .tokens = 1, .vocab = 5});
  EXPECT_EQ(beams.at(0).ids, Ids{alone.score.id});
  EXPECT_NEAR(beams[0].log_probability, expected, 1e-9);
}

TEST(BeamSearch, OneBeamIsGreedy) {
  TinyGpt gpt;
  BatchDecoder decoder(*gpt.backend, gpt.parameters, gpt.spec, {.sequences = 2, .pass_tokens = 3});
  Decoder single(*gpt.backend, gpt.parameters, gpt.spec);
  const Ids prompt = {1, 2, 3, 4, 5, 6, 7};
  const auto greedy =
      Generator(single, {.tokens = 12, .sampling = {.greedy = true}}).generate(prompt).ids;
  const auto found = beam_search(decoder, prompt, {.beams = 1, .tokens = 12});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].ids, greedy);
  // The model holds 24 tokens.
  EXPECT_EQ(beam_search(decoder, prompt, {.beams = 1, .tokens = 100})[0].stop, Stop::context);
}

// 20 beams on 300 positions: the blocks that a search may need are enough for one after another,
// and with one block less none begins.
TEST(BeamSearch, IsRefusedWhereTheCacheMayNotHoldIt) {
  model::Gpt2Config config = few_words();
  config.positions = 300;
  TinyGpt gpt(config);
  const auto decoder_of = [&](std::int64_t blocks) {
    return BatchDecoder(
        *gpt.backend, gpt.parameters, gpt.spec,
        {.sequences = 40, .pass_tokens = 64, .cache_positions = blocks * CachePlan::kPositions});
  };
  struct Case {
    std::size_t prompt;
    std::int64_t tokens, blocks;
  };
  const auto options_of = [](const Case& each) {
    return BeamOptions{.beams = 20, .tokens = each.tokens};
  };
  // Whole blocks of the prompt; those of the parents; a new one of each beam.
  const Case cases[] = {
      {63, 1, 1},       {65, 1, 2}, {64, 2, 1 + 20}, {65, 2, 1 + 1 + 20}, {100, 30, 1 + 20 + 20},
      {7, 150, 60 + 20}};
  for (const Case& each : cases) {
    BatchDecoder decoder = decoder_of(each.blocks);
    for (const std::int32_t first : {0, 3}) {
      const Ids prompt(each.prompt, first);
      EXPECT_EQ(beam_search(decoder, prompt, options_of(each)).size(), each.tokens == 1 ? 5u : 20u)
          << each.prompt << " + " << each.tokens;
    }
    if (each.blocks < 3) continue;
    BatchDecoder small = decoder_of(each.blocks - 1);
    const Ids prompt(each.prompt, 1);
    EXPECT_EQ(message_of<DataError>([&] { beam_search(small, prompt, options_of(each)); }),
              fmt::format(
                  "the KV cache is too small: 20 beams of {} tokens after {} tokens of the prompt "
                  "may need {} blocks of 64 positions, and it has {}; give it {} positions "
                  "(--cache), or search with fewer beams or tokens",
                  each.tokens, each.prompt, each.blocks, each.blocks - 1, 64 * each.blocks));
    EXPECT_EQ(small.blocks().free_blocks(), each.blocks - 1) << "nothing has begun";
  }
  BatchDecoder decoder = decoder_of(1);
  const std::string message =
      message_of<DataError>([&] { beam_search(decoder, Ids(64, 1), {.beams = 20}); });
  EXPECT_EQ(message,
            "the prompt has 64 tokens, but the KV cache holds 64, of which one at least is for the "
            "continuation");
}

}  // namespace
}  // namespace trireme::generate
