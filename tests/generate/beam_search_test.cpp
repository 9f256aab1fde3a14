#include "generate/beam_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

}  // namespace
}  // namespace trireme::generate
