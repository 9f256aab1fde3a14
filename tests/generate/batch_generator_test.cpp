#include "generate/generator.hpp"

#include <gtest/gtest.h>

#include <cmath>

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
  Decoder uncached(*gpt_.backend, gpt_.parameters, gpt_.spec);
  std::vector<Continuation> expected;
  for (const Job& job : jobs())
    expected.push_back(Generator(uncached, job.request).generate(job.prompt, job.sample));
  for (const BatchLimits& limits : {BatchLimits{.sequences = 1},
                                    {.sequences = 2, .pass_tokens = 5},
                                    {.sequences = 16},
                                    // A cache of one block and of three: jobs wait for a place.
                                    {.sequences = 16, .cache_positions = 24},
                                    {.sequences = 16, .cache_positions = 192}}) {
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

// Requests that are answered from the largest logits alone, next to others that are not.
TEST_F(BatchGeneratorTest, TheLargestLogitsAreEnough) {
  Decoder uncached(*gpt_.backend, gpt_.parameters, gpt_.spec);
  std::vector<Job> jobs;
  for (int i = 0; i < 6; ++i) {
    Request request{.tokens = 8, .sampling = {.greedy = i == 0, .top_k = 5 * i, .seed = 3}};
    if (i == 3) request.sampling.top_p = 0.7;
    if (i == 4) request.sampling.min_p = 0.1;
    request.vocab = 30;
    jobs.push_back(
        {.prompt = {1, 2, 3}, .request = request, .sample = static_cast<std::uint64_t>(i)});
  }
  for (const bool all_logits : {false, true}) {
    if (all_logits) jobs.push_back({.prompt = {4}, .request = {.tokens = 8}});
    const auto found = run(jobs, {.sequences = 8});
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      Request request = jobs[i].request;
      if (request.vocab == 0) request.vocab = 37;
      EXPECT_EQ(needed_logits(request) == 0, i == 6) << i;
      EXPECT_EQ(found[i].ids,
                Generator(uncached, request).generate(jobs[i].prompt, jobs[i].sample).ids)
          << "job " << i;
    }
  }
}

TEST(CachePlan, LeavesRoomForTheKernelsOfPasses) {
  model::ModelSpec gpt2;  // 1.5B
  gpt2.hidden = 1600;
  gpt2.vocab = 50257;
  gpt2.blocks.assign(
      48, {.attention = {.heads = 25, .kv_heads = 25, .head_dim = 64}, .mlp = {.width = 6400}});
  CachedLayers layers{.spec = gpt2, .first = 0, .count = 48, .dtype = DType::bf16};
  // Tagged words of qkv, attention, projection and the MLP's two, the sums of eight parts of the
  // keys, five instructions; then the logits.
  const std::size_t layer =
      4 * (4800 + 1600 + 1600 + 6400 + 1600) + 8 * 25 * 8 * (64 + 2) + 5 * 320;
  EXPECT_EQ(planned_pass_bytes(layers), 2 * (48 * layer + 4 * 50272 + 320 + 1024));
  for (model::BlockSpec& block : gpt2.blocks) block.attention.kv_heads = 5;  // five share one
  // Three blocks of two query heads have the five.
  const std::size_t grouped =
      4 * ((25 + 10) * 64 + 1600 + 1600 + 6400 + 1600) + 8 * (5 * 3) * 8 * 2 * 66 + 5 * 320;
  EXPECT_EQ(planned_pass_bytes(layers), 2 * (48 * grouped + 4 * 50272 + 320 + 1024));
  layers.tensor_ranks = 5;
  EXPECT_EQ(planned_pass_bytes(layers), 0u);
  layers.tensor_ranks = 1;
  layers.dtype = DType::f32;
  EXPECT_EQ(planned_pass_bytes(layers), 0u);

  CachePlan plan{.blocks = 96, .block_bytes = 1000};
  EXPECT_EQ(plan.text(), "96 blocks of 64 positions, 93.8 KiB");
  EXPECT_DOUBLE_EQ(plan.blocks_in(1'000'000), 900.0);
  plan.pass_bytes = 400'000;
  EXPECT_EQ(plan.text(),
            "96 blocks of 64 positions, 93.8 KiB, and 390.6 KiB for passes over one token");
  EXPECT_DOUBLE_EQ(plan.blocks_in(1'000'000), 500.0);
  EXPECT_EQ(plan.blocks_in(300'000), 0.0);
}

TEST(BlockTable, SharesBlocksUntilTheyAreWritten) {
  using Copies = std::vector<std::pair<std::int32_t, std::int32_t>>;
  BlockTable table(3, 40, 6, 10);
  EXPECT_EQ(table.columns(), 4);
  EXPECT_EQ(table.prepare(0, 0, 25), Copies());
  EXPECT_EQ(table.free_blocks(), 3);
  table.share(0, 1);
  table.share(0, 2);
  EXPECT_EQ(table.free_blocks(), 3);
  // The two others write to the third block: each copies it.
  EXPECT_EQ(table.prepare(1, 25, 26), (Copies{{2, 3}}));
  EXPECT_EQ(table.prepare(0, 25, 31), (Copies{{2, 4}}));
  EXPECT_EQ(table.free_blocks(), 0);
  EXPECT_EQ(table.prepare(2, 25, 30), Copies());  // now it has it alone
  const auto row = [&](int sequence) {
    const auto blocks = table.table().subspan(4 * sequence, 4);
    return std::vector<std::int32_t>(blocks.begin(), blocks.end());
  };
  EXPECT_EQ(row(0), (std::vector<std::int32_t>{0, 1, 4, 5}));
  EXPECT_EQ(row(1), (std::vector<std::int32_t>{0, 1, 3, 0}));
  EXPECT_EQ(row(2), (std::vector<std::int32_t>{0, 1, 2, 0}));
  EXPECT_NE(message_of<DataError>([&] { table.prepare(1, 26, 40); }).find("KV cache is full"),
            std::string::npos);
  table.release(0);
  EXPECT_EQ(table.free_blocks(), 2);
  table.release(1);
  table.prepare(2, 0, 1);  // a new text
  EXPECT_EQ(table.free_blocks(), 5);
  EXPECT_THROW(table.prepare(2, 11, 12), InternalError);  // position 10 is missing
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
