#include "plan/run_plan.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "decks.hpp"

namespace trireme::plan {
namespace {

constexpr std::int64_t kGpt2Parameters = 124'439'808;  // as published for GPT-2 small

TEST(RunPlan, CountsGpt2) {
  const RunPlan plan = plan_gpt2();
  EXPECT_EQ(plan.parameters, kGpt2Parameters);
  EXPECT_EQ(plan.parameters_without_embeddings, kGpt2Parameters - (kGpt2Vocab + 1024) * kHidden);
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].parameters, kGpt2Parameters + (kPadded - kGpt2Vocab) * kHidden);
  EXPECT_EQ(plan.iterations, 1000);
  EXPECT_EQ(plan.tokens_per_step, 64 * 1024);
  EXPECT_EQ(plan.micro_batches, 16);
  EXPECT_EQ(plan.bubble, 0.0);
}

TEST(RunPlan, TensorRanksShareMatricesAndCopyTheRest) {
  const RunPlan plan = plan_gpt2({"parallel.tensor=2"}, 2);
  EXPECT_EQ(plan.parameters, kGpt2Parameters);
  const std::int64_t h = kHidden;
  const std::int64_t layer = (3 * h * h + 3 * h) / 2 + (h * h / 2 + h) + (4 * h * h + 4 * h) / 2 +
                             (4 * h * h / 2 + h) + 4 * h;
  const std::int64_t half_vocabulary = 197 * 128;  // 25,129 rounded up
  EXPECT_EQ(plan.stages[0].parameters, 12 * layer + (half_vocabulary + 1024) * h + 2 * h);
}

TEST(RunPlan, StagesHoldTheModelOnceAndTheTiedEmbeddingTwice) {
  const RunPlan plan =
      plan_gpt2({"parallel.pipeline=4", "parallel.partition=0-5-7-0"}, /*ranks=*/4);
  std::int64_t held = 0;
  for (const StagePlan& stage : plan.stages) held += stage.parameters;
  EXPECT_EQ(held, kGpt2Parameters + (2 * kPadded - kGpt2Vocab) * kHidden);
  EXPECT_EQ(plan.stages[0].chunks, (std::vector<grid::LayerRange>{{0, 0}}));
  EXPECT_EQ(plan.stages[1].chunks, (std::vector<grid::LayerRange>{{0, 5}}));
  EXPECT_EQ(plan.stages[2].chunks, (std::vector<grid::LayerRange>{{5, 7}}));
  EXPECT_EQ(plan.stages[3].parameters, kPadded * kHidden + 2 * kHidden);
}

TEST(RunPlan, BubbleAndSlotsOfOneForwardOneBackward) {
  for (const int stages : {2, 3, 4, 6, 12}) {
    for (const int micro_batches : {1, 2, 4, 16}) {
      const RunPlan plan =
          plan_gpt2({"parallel.pipeline=" + std::to_string(stages), "parallel.data=1",
                     "batch.global=" + std::to_string(4 * micro_batches)},
                    stages);
      EXPECT_EQ(plan.micro_batches, micro_batches);
      EXPECT_NEAR(plan.bubble, (stages - 1.0) / (micro_batches + stages - 1.0), 1e-12)
          << stages << " stages, " << micro_batches << " micro-batches";
      for (int stage = 0; stage < stages; ++stage)
        EXPECT_EQ(plan.stages[stage].slots, std::min(stages - stage, micro_batches));
    }
  }
}

TEST(RunPlan, OfAThousandStagesTakesSeconds) {
  // The test's time limit is the judge: a search for each parameter's stage takes minutes.
  const RunPlan plan = plan_gpt2({"model.layers=1000", "parallel.pipeline=1000", "parallel.data=1",
                                  "batch.micro=1", "batch.global=1000"},
                                 /*ranks=*/1000);
  ASSERT_EQ(plan.stages.size(), 1000u);
  for (int stage = 0; stage < 1000; ++stage) {
    EXPECT_EQ(plan.stages[stage].chunks, (std::vector<grid::LayerRange>{{stage, 1}}));
    EXPECT_EQ(plan.stages[stage].slots, 1000 - stage);
  }
  EXPECT_NEAR(plan.bubble, 999.0 / 1999.0, 1e-12);
}

TEST(RunPlan, InterleavedStagesHoldTheModelInChunks) {
  const std::vector<std::string> words = {"parallel.pipeline=4", "parallel.data=1",
                                          "batch.global=32"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), words.begin(), words.end());
    return plan_gpt2(more, 4);
  };
  const RunPlan plan = with({"parallel.schedule=interleaved", "parallel.interleave=3"});
  const RunPlan plain = with({});
  EXPECT_NEAR(plan.bubble, 3.0 / (3 * 8 + 3), 1e-12);
  EXPECT_EQ(plan.stages[1].chunks, (std::vector<grid::LayerRange>{{1, 1}, {5, 1}, {9, 1}}));
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(plan.stages[stage].parameters, plain.stages[stage].parameters);
    EXPECT_EQ(plan.stages[stage].slots, 2 * (4 - stage - 1) + 2 * 4 + 1);
  }
  // Fifteen slots of one layer, each with its input and output, against four of three layers.
  EXPECT_NEAR(static_cast<double>(plan.stages[0].memory.activations),
              15.0 / 12 * static_cast<double>(plain.stages[0].memory.activations),
              0.06 * static_cast<double>(plain.stages[0].memory.activations));
  EXPECT_NE(to_text(plan).find("pipeline bubble 11.1 % (interleaved)"), std::string::npos);
  EXPECT_NE(to_text(plan).find("\n     1    1,5,9 "), std::string::npos) << to_text(plan);
}

// BigScience's GPT-2 recipe, by hand: 72 x 2, 36 x 4, 24 x 6, 18 x 8, 14 x 10, 12 x 12, 10 x 14 and
// 1 x 16 samples; then 561 batches of 16 fit into what is left.
TEST(RunPlan, CountsTheIterationsOfARampUp) {
  const RunPlan plan = plan_gpt2({"train.iterations=", "train.samples=10000", "batch.micro=1",
                                  "batch.global=16", "batch.rampup.start=2", "batch.rampup.step=2",
                                  "batch.rampup.samples=1000", "schedule.decay=10000"});
  EXPECT_EQ(plan.iterations, 187 + 561);
  EXPECT_EQ(plan.micro_batches, 16);
  EXPECT_NE(to_text(plan).find("\nramp-up    batches of 2 to 16 samples, by 2, in the first 187 "
                               "iterations: 1016 samples\n"),
            std::string::npos)
      << to_text(plan);
  EXPECT_EQ(to_text(plan_gpt2()).find("ramp-up"), std::string::npos);
}

TEST(RunPlan, ZeroBubbleTakesNoMoreThanTheFullestStage) {
  const std::vector<std::string> words = {"parallel.pipeline=4", "parallel.data=1",
                                          "batch.global=32"};
  const RunPlan plain = plan_gpt2(words, 4);
  std::vector<std::string> more = words;
  more.push_back("parallel.schedule=zero-bubble");
  const RunPlan plan = plan_gpt2(more, 4);
  EXPECT_NEAR(plan.bubble, 1.0 / 9, 1e-12);
  EXPECT_NEAR(plain.bubble, 3.0 / 11, 1e-12);
  EXPECT_EQ(plan.stages[0].memory.total(), plain.stages[0].memory.total());
  const std::size_t head =
      plain.stages[3].memory.activations - plain.stages[2].memory.activations / 2;
  for (const StagePlan& stage : plan.stages) {
    EXPECT_EQ(stage.slots, 4);
    EXPECT_LE(stage.memory.activations, plain.stages[0].memory.activations + head);
  }
}

TEST(RunPlan, RecomputedLayersAreInputsInEachSlotAndOneSetForAll) {
  const auto with = [](std::vector<std::string> words) {
    words.insert(words.end(), {"parallel.pipeline=4", "parallel.data=1", "batch.global=32"});
    return plan_gpt2(words, 4);
  };
  const RunPlan kept = with({});
  const RunPlan full = with({"recompute.granularity=full"});
  // A stage of three layers, without the head: four streams a slot, and one layer for all slots.
  const std::size_t stream = 4ul * 4 * 1024 * kHidden;
  const std::size_t tokens = 4ul * 4 * 1024;
  const std::size_t layer =
      (1 + 3 + 1 + 1 + 1 + 4 + 4) * stream + (4 + 12) * tokens;  // tensors, and their statistics
  const std::size_t slot = 4 * stream + 256;  // with the first sample's number, which keys dropout
  EXPECT_EQ(kept.stages[1].memory.activations, 3 * (slot + 3 * layer));
  EXPECT_EQ(full.stages[1].memory.activations, 3 * slot + layer);
  EXPECT_EQ(full.stages[1].memory.workspace, kept.stages[1].memory.workspace);
  const RunPlan block =
      with({"recompute.granularity=full", "recompute.method=block", "recompute.layers=2"});
  EXPECT_EQ(block.stages[1].memory.activations, 3 * (slot + layer) + layer);
  const RunPlan selective = with({"recompute.granularity=selective"});
  EXPECT_EQ(selective.stages[1].memory.activations,
            kept.stages[1].memory.activations - (3 * 3 * 2 - 1) * stream);
  const auto row_has = [](const RunPlan& plan, const std::string& memory) {
    const std::string text = to_text(plan);
    const std::size_t row = text.find("\n     1      3-5 ");
    ASSERT_NE(row, std::string::npos) << text;
    EXPECT_LT(text.find(" " + memory + " ", row), text.find('\n', row + 1)) << text;
  };
  row_has(kept, "1.7 GiB");
  row_has(full, "324.3 MiB");
}

TEST(RunPlan, OffloadedInputsAreInTheHostsMemory) {
  const auto with = [](std::vector<std::string> words) {
    words.insert(words.end(), {"parallel.pipeline=2", "parallel.data=1", "parallel.tensor=2",
                               "recompute.granularity=full"});
    return plan_gpt2(words, 4);
  };
  const RunPlan plain = with({"run.device=cuda"});
  const RunPlan away = with({"run.device=cuda", "recompute.offload=true"});
  const RunPlan both =
      with({"run.device=cuda", "recompute.offload=true", "recompute.partition=true"});
  const RunPlan host = with({"recompute.offload=true"});
  // Two slots of six inputs, for which three streams are at hand.
  const std::size_t stream = 2ul * 4 * 1024 * kHidden;
  const auto& [kept, on_host, in_halves] =
      std::tie(plain.stages[0].memory, away.stages[0].memory, both.stages[0].memory);
  EXPECT_EQ(kept.host, 0u);
  EXPECT_EQ(on_host.host, 2 * 6 * stream);
  EXPECT_EQ(on_host.activations, kept.activations - (2 * 6 - 3) * stream);
  EXPECT_EQ(on_host.total(), kept.total() - (2 * 6 - 3) * stream);
  EXPECT_EQ(in_halves.host, 6 * stream);
  EXPECT_EQ(in_halves.activations, on_host.activations);
  EXPECT_NE(to_text(away).find("      total    on host\n"), std::string::npos) << to_text(away);
  EXPECT_NE(to_text(away).find("   72.0 MiB\n"), std::string::npos) << to_text(away);
  EXPECT_EQ(to_text(plain).find("on host"), std::string::npos) << to_text(plain);
  // Ranks that compute on the host have all in one memory.
  EXPECT_EQ(host.stages[0].memory.host, 0u);
  EXPECT_EQ(host.stages[0].memory.activations,
            with({}).stages[0].memory.activations + 2 * 3 * stream);
}

TEST(RunPlan, CopiesOfCheckpointsAreInTheHostsMemoryByDefault) {
  const auto with = [](const std::string& word) {
    return plan_gpt2({"run.device=cuda", "checkpoint.every=10", word});
  };
  const RunPlan unset = with("log.every=1"), on = with("checkpoint.async=true");
  // Master weights and both moments in fp32.
  EXPECT_GE(on.stages[0].memory.host, 12u * kGpt2Parameters);
  EXPECT_EQ(unset.stages[0].memory.host, on.stages[0].memory.host);
  EXPECT_EQ(unset.stages[0].memory.total(), on.stages[0].memory.total());
  const std::string note = "checkpoint.async, which is not set: a run makes them where half of";
  EXPECT_NE(to_text(unset).find(note), std::string::npos) << to_text(unset);
  EXPECT_EQ(to_text(on).find(note), std::string::npos) << to_text(on);
  EXPECT_EQ(with("checkpoint.async=false").stages[0].memory.host, 0u);
  EXPECT_EQ(plan_gpt2({"run.device=cuda"}).stages[0].memory.host, 0u);  // saves at its end alone
  // Ranks on the host write without copies by default.
  EXPECT_EQ(plan_gpt2({"checkpoint.every=10"}).stages[0].memory.total(),
            plan_gpt2({}).stages[0].memory.total());
}

TEST(RunPlan, MemoryByPurpose) {
  const MemoryPlan whole = plan_gpt2({"parallel.zero=0"}).stages[0].memory;
  const auto fp32 = static_cast<double>(4 * kGpt2Parameters);
  EXPECT_NEAR(whole.weights, fp32, 1e-3 * fp32);  // parameters are aligned
  EXPECT_EQ(whole.gradients, whole.weights);
  EXPECT_EQ(whole.optimizer, 2 * whole.weights);
  EXPECT_EQ(whole.total(), whole.weights + whole.gradients + whole.optimizer + whole.activations +
                               whole.workspace + whole.communication + whole.libraries);
  // What one layer must keep of a micro-batch for its backward pass, at the very least: its input,
  // q, k, v, the attention's output and the MLP's inner activation.
  EXPECT_GT(whole.activations, 12u * 4 * (4 * 1024 * kHidden * (1 + 3 + 1 + 4)));
}

TEST(RunPlan, ZeroCutsTheOptimizerOverDataRanks) {
  const std::size_t whole = plan_gpt2({"parallel.zero=0"}, 4).stages[0].memory.optimizer;
  const std::size_t shard = plan_gpt2({"parallel.zero=1"}, 4).stages[0].memory.optimizer;
  EXPECT_NEAR(static_cast<double>(shard), whole / 4.0, 1e-3 * static_cast<double>(whole));
}

/// Elements of one layer's matrices, and of all that is not in them: embeddings, norms and biases.
constexpr std::int64_t kMatrices = 12 * kHidden * kHidden;
constexpr std::int64_t kCommon = (kPadded + 1024 + 12 * 13 + 2) * kHidden;

TEST(RunPlan, ZeroCutsGradientsAndWeightsOverDataRanks) {
  const auto memory = [](int stage, std::vector<std::string> words = {}) {
    words.push_back("parallel.zero=" + std::to_string(stage));
    return plan_gpt2(words, 4).stages[0].memory;
  };
  const std::size_t whole = 4 * (kCommon + 12 * kMatrices);
  // All that is common to layers, a quarter of their matrices, and room for two layers at a time.
  const std::size_t part = 4 * (kCommon + 12 * kMatrices / 4 + 2 * kMatrices);
  EXPECT_EQ(memory(1).gradients, whole);
  EXPECT_EQ(memory(2).gradients, part);
  EXPECT_EQ(memory(2).weights, whole);
  EXPECT_EQ(memory(3).gradients, part);
  EXPECT_EQ(memory(3).weights, part);
  for (const int stage : {2, 3}) EXPECT_EQ(memory(stage).optimizer, memory(1).optimizer);
  // Without overlap, one layer at a time.
  EXPECT_EQ(memory(3, {"parallel.overlap.gradients=false"}).gradients, part - 4 * kMatrices);
  EXPECT_EQ(memory(3, {"parallel.overlap.gradients=false"}).weights, part);
  EXPECT_EQ(memory(3, {"parallel.overlap.parameters=false"}).weights, part - 4 * kMatrices);
  // A rank without others to share with holds everything.
  EXPECT_EQ(plan_gpt2({"parallel.zero=3"}).stages[0].memory.weights, whole);
  // Never room for more layers than there are.
  const auto stages = plan_gpt2({"parallel.zero=3", "parallel.pipeline=3", "batch.global=32",
                                 "parallel.partition=0-1-11"},
                                6)
                          .stages;
  EXPECT_EQ(stages[0].memory.weights, 4 * static_cast<std::size_t>((kPadded + 1024) * kHidden));
  EXPECT_EQ(stages[1].memory.weights,
            4 * static_cast<std::size_t>(13 * kHidden + kMatrices / 2 + kMatrices));
}

TEST(RunPlan, NarrowGradientsAreThoseOfMatrices) {
  const auto memory = [](std::vector<std::string> words) {
    words.push_back("precision.compute=bf16");
    return plan_gpt2(words).stages[0].memory;
  };
  const MemoryPlan wide = memory({}), narrow = memory({"precision.gradients=same"});
  EXPECT_EQ(wide.gradients, 4u * (kCommon + 12 * kMatrices));
  EXPECT_EQ(narrow.gradients, 4u * kCommon + 2u * 12 * kMatrices);
  // The optimizer widens a bucket at a time, of a layer at most.
  EXPECT_EQ(narrow.optimizer, wide.optimizer + 4u * kMatrices);
  EXPECT_EQ(memory({"precision.gradients=same", "parallel.bucket=1e6"}).optimizer,
            wide.optimizer + 4u * kMatrices / 8);  // equal parts of at most a million
}

TEST(RunPlan, OptimizersTakeWhatTheyKeep) {
  const auto optimizer = [](const std::vector<std::string>& words) {
    return plan_gpt2(words).stages[0].memory.optimizer;
  };
  const std::size_t adamw = optimizer({});
  EXPECT_EQ(optimizer({"optimizer.type=lamb"}), adamw);
  EXPECT_EQ(2 * optimizer({"optimizer.type=sgd", "optimizer.momentum=0.9"}), adamw);
  EXPECT_EQ(optimizer({"optimizer.type=sgd"}), 0u);
}

TEST(RunPlan, LargestStageDecides) {
  const RunPlan plan = plan_gpt2({"parallel.pipeline=2", "parallel.partition=2-10"}, 2);
  for (const StagePlan& stage : plan.stages)
    EXPECT_LE(stage.memory.total(), plan.largest().memory.total());
}

TEST(RunPlan, TextShowsEveryStage) {
  const std::string text = to_text(plan_gpt2(
      {"parallel.tensor=2", "parallel.pipeline=3", "batch.global=32", "parallel.partition=0-1-11"},
      12));
  EXPECT_NE(text.find("12 = tensor 2 x pipeline 3 x data 2, layers per stage 0-1-11"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("124.44 M, 1000 iterations of 32768 tokens in 4 micro-batches"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("bubble 33.3 % (1f1b)"), std::string::npos) << text;
  EXPECT_NE(text.find("\n     0        - "), std::string::npos) << text;
  EXPECT_NE(text.find("\n     1        0 "), std::string::npos) << text;
  EXPECT_NE(text.find("\n     2     1-11 "), std::string::npos) << text;
}

}  // namespace
}  // namespace trireme::plan
