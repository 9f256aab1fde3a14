#include "generate/batch_generator.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "generate/decoder.hpp"
#include "tiny_gpt.hpp"

namespace trireme::generate {
namespace {

using Ids = std::vector<std::int32_t>;

class BatchGeneratorTest : public testing::Test {
 protected:
  /// What the jobs get in a batch of `sequences`, `pass_tokens` at a time.
  std::vector<Continuation> run(const std::vector<Job>& jobs, const BatchLimits& limits) {
    BatchDecoder decoder(*gpt_.backend, gpt_.parameters, gpt_.spec, limits);
    BatchGenerator generator(decoder);
    std::vector<Continuation> found(jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      Job job = jobs[i];
      job.on_end = [&found, i](Continuation continuation) { found[i] = std::move(continuation); };
      generator.submit(std::move(job));
    }
    while (generator.step()) EXPECT_LE(std::ssize(found), 1000);
    EXPECT_EQ(generator.active() + generator.waiting(), 0u);
    return found;
  }

  /// Jobs with prompts of unequal lengths, greedy and sampled, that end at unequal times.
  static std::vector<Job> jobs() {
    std::vector<Job> jobs;
    for (int i = 0; i < 9; ++i) {
      Ids prompt;
      for (int k = 0; k <= 2 * i; ++k) prompt.push_back((7 * i + 3 * k) % 37);
      Request request{.tokens = 3 + i % 4, .sampling = {.greedy = i % 2 == 0, .seed = 9}};
      request.alternatives = 2;
      jobs.push_back(
          {.prompt = prompt, .request = request, .sample = static_cast<std::uint64_t>(i)});
    }
    return jobs;
  }

  TinyGpt gpt_;
};

TEST_F(BatchGeneratorTest, ABatchGivesWhatEachPromptGetsAlone) {
  Decoder uncached(*gpt_.backend, gpt_.parameters, gpt_.spec, Cache::none);
  std::vector<Continuation> expected;
  for (const Job& job : jobs())
    expected.push_back(Generator(uncached, job.request).generate(job.prompt, job.sample));
  for (const BatchLimits& limits :
       {BatchLimits{.sequences = 1}, {.sequences = 2, .pass_tokens = 5}, {.sequences = 16}}) {
    const auto found = run(jobs(), limits);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].ids, expected[i].ids) << "job " << i << " of " << limits.sequences;
      EXPECT_EQ(found[i].stop, expected[i].stop) << "job " << i;
      ASSERT_EQ(found[i].tokens.size(), found[i].ids.size());
      for (std::size_t k = 0; k < found[i].tokens.size(); ++k) {
        const ChosenToken& token = found[i].tokens[k];
        EXPECT_NEAR(token.score.log_probability, expected[i].tokens[k].score.log_probability, 1e-4);
        ASSERT_EQ(token.alternatives.size(), 2u);
        EXPECT_GE(token.alternatives[0].log_probability, token.alternatives[1].log_probability);
        if (jobs()[i].request.sampling.greedy) {
          EXPECT_EQ(token.alternatives[0].id, token.score.id);
        }
      }
    }
  }
  EXPECT_EQ(expected.back().ids.size(), 3u);
}

TEST_F(BatchGeneratorTest, LogProbabilitiesAreThoseOfTheSoftmax) {
  const Job job{.prompt = {4, 8}, .request = {.tokens = 1, .alternatives = 37}};
  const auto found = run({job}, {});
  Decoder decoder(*gpt_.backend, gpt_.parameters, gpt_.spec);
  const auto logits = decoder.logits(job.prompt);
  double sum = 0.0, total = 0.0;
  for (const double logit : logits) sum += std::exp(logit);
  for (const TokenScore& each : found[0].tokens[0].alternatives) {
    EXPECT_NEAR(each.log_probability, logits[each.id] - std::log(sum), 1e-5);
    total += std::exp(each.log_probability);
  }
  EXPECT_NEAR(total, 1.0, 1e-9);
}

TEST_F(BatchGeneratorTest, JobsThatAreCancelledOrStoppedLeaveTheOthersAlone) {
  BatchDecoder decoder(*gpt_.backend, gpt_.parameters, gpt_.spec, {.sequences = 2});
  const Request request{.tokens = 6, .sampling = {.greedy = true}};
  const Ids alone = run({{.prompt = {1, 2}, .request = request}}, {})[0].ids;
  BatchGenerator generator(decoder);
  Continuation last, stopped;
  bool cancelled_ended = false;
  const auto ticket =
      generator.submit({.prompt = {9, 9}, .request = request, .on_end = [&](Continuation) {
                          cancelled_ended = true;
                        }});
  int tokens = 0;
  generator.submit({.prompt = {5},
                    .request = request,
                    .on_token = [&](const ChosenToken&) { return ++tokens < 3; },
                    .on_end = [&](Continuation found) { stopped = std::move(found); }});
  generator.submit({.prompt = {1, 2}, .request = request, .on_end = [&](Continuation found) {
                      last = std::move(found);
                    }});
  generator.step();
  generator.cancel(ticket);
  while (generator.step()) {
  }
  EXPECT_FALSE(cancelled_ended);
  EXPECT_EQ(stopped.ids.size(), 3u);
  EXPECT_EQ(stopped.stop, Stop::text);
  EXPECT_EQ(last.ids, alone);
}

TEST_F(BatchGeneratorTest, RefusesPromptsThatTheModelCannotHold) {
  BatchDecoder decoder(*gpt_.backend, gpt_.parameters, gpt_.spec, {});
  BatchGenerator generator(decoder);
  EXPECT_THROW(generator.submit({.prompt = Ids(24, 1)}), DataError);
  EXPECT_THROW(generator.submit({}), UsageError);
  EXPECT_FALSE(generator.step());
  EXPECT_THROW(decoder.run({{.slot = 8, .ids = {1}}}), InternalError);
  EXPECT_THROW(decoder.run({{.slot = 0, .past = 24, .ids = {1}}}), InternalError);
  EXPECT_THROW(decoder.run({{.slot = 0, .ids = {37}}}), InternalError);
}

}  // namespace
}  // namespace trireme::generate
