// Times of passes, steps and their parts.
#include "plan/search/step_time.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "deck/load.hpp"
#include "decks.hpp"
#include "plan/run_plan.hpp"
#include "plan/search/layout_search.hpp"

namespace trireme::plan {
namespace {

/// Twice as slow as the formulas for 4,096 tokens, three times for 16,384; tensor collectives of a
/// block take a tenth of its forward pass.
GpuKind profiled_gpu(const deck::Deck& deck) {
  GpuKind gpu{.name = "g", .memory = 24e9, .bandwidth = 1e12};
  gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
  MeasuredGpu measured{.name = "g", .optimizer = 2e-11, .optimizer_constant = 1e-4};
  for (const auto& [micro, factor] : {std::pair{4, 2.0}, {16, 3.0}}) {
    ModelShape shape = model_shape(deck, 50257);
    shape.micro = micro;
    const PassTimes times = pass_times(gpu, shape);
    const auto slower = [factor = factor](const UnitSeconds& a, const UnitSeconds& b) {
      return UnitSeconds{factor * (a.embedding + b.embedding), factor * (a.block + b.block),
                         factor * (a.head + b.head)};
    };
    const double tenth = 0.1 * factor * times.forward.block;
    measured.profiles.push_back(
        {.hidden = 768,
         .heads = 12,
         .sequence = 1024,
         .tensor = deck.parallel.tensor,
         .micro = micro,
         .forward = slower(times.forward, {}),
         .own = MeasuredPasses{.family = deck::Family::gpt,
                               .compute = deck::Compute::bf16,
                               .dropout = true,
                               .ffn = 4 * 768,
                               .vocab = 50257,
                               .backward = slower(times.input_gradient, times.weight_gradient),
                               .weight_gradient = {0, factor * times.weight_gradient.block, 0},
                               .recompute_full = 0.5 * factor * times.recompute_full,
                               .tensor_forward = UnitSeconds{0, tenth, 0},
                               .tensor_backward = UnitSeconds{0, tenth, 0}}});
  }
  gpu.measured = measured;
  return gpu;
}

TEST(PassTimes, AreScaledToTheNearestProfile) {
  const deck::Deck deck = gpt2_deck({"run.device=cuda"});
  GpuKind gpu = profiled_gpu(deck);
  gpu.peak[static_cast<int>(deck::Compute::fp16)] = 6e14;
  GpuKind bare = gpu;
  bare.measured.reset();
  const auto slower = [&](ModelShape shape) {
    const PassTimes a = pass_times(gpu, shape), b = pass_times(bare, shape);
    EXPECT_EQ(a.source, TimeSource::profile);
    EXPECT_EQ(b.source, TimeSource::formula);
    const double factor = a.forward.block / b.forward.block;
    EXPECT_NEAR(a.backward_block() / b.backward_block(), factor, 1e-9);
    EXPECT_NEAR(a.weight_gradient.block / b.weight_gradient.block, factor, 1e-9);
    EXPECT_NEAR(a.forward.head / b.forward.head, factor, 1e-9);
    EXPECT_NEAR(a.recompute_full / b.recompute_full, 0.5 * factor, 1e-9);
    return factor;
  };
  ModelShape shape = model_shape(deck, 50257);
  EXPECT_NEAR(slower(shape), 2.0, 1e-9);
  shape.micro = 8;
  EXPECT_NEAR(slower(shape), 2.5, 1e-9);  // the geometric middle
  shape.micro = 64;
  EXPECT_NEAR(slower(shape), 3.0, 1e-9);
  shape.micro = 1;
  EXPECT_NEAR(slower(shape), 2.0, 1e-9);
  shape.hidden = 1536;  // another model
  EXPECT_NEAR(slower(shape), 2.0, 1e-9);
  shape.compute = deck::Compute::fp16;  // as bf16, of which the profiles are
  EXPECT_NEAR(slower(shape), 2.0, 1e-9);
  shape.compute = deck::Compute::fp32;  // nothing is measured
  EXPECT_EQ(pass_times(gpu, shape).source, TimeSource::formula);
  shape.compute = deck::Compute::fp16;
  gpu.peak[static_cast<int>(deck::Compute::bf16)] = 0;  // what was measured has no formula
  EXPECT_EQ(pass_times(gpu, shape).source, TimeSource::formula);
}

TEST(PassTimes, AreBetweenANarrowerAndAWiderModel) {
  const deck::Deck deck = gpt2_deck({"run.device=cuda"});
  GpuKind gpu = profiled_gpu(deck);
  GpuKind bare = gpu;
  bare.measured.reset();
  // The same times for a model of four times the width: there they are the smaller share of the
  // formula's.
  std::vector<Profile>& profiles = gpu.measured->profiles;
  for (int i = 0; i < 2; ++i) {
    Profile wide = profiles[i];
    wide.hidden *= 4;
    wide.heads *= 4;
    wide.own->ffn *= 4;
    profiles.push_back(wide);
  }
  const auto factor = [&](std::int64_t width, std::int64_t micro) {
    ModelShape shape = model_shape(deck, 50257);
    shape.micro = micro;
    shape.hidden = 768 * width;
    shape.heads = 12 * width;
    shape.ffn = 4 * 768 * width;
    return pass_times(gpu, shape).forward.block / pass_times(bare, shape).forward.block;
  };
  EXPECT_NEAR(factor(1, 4), 2.0, 1e-9);
  EXPECT_LT(factor(4, 4), 1.0);
  // The geometric middle, of the narrower model with as many elements.
  EXPECT_NEAR(factor(2, 2), (factor(1, 4) + factor(4, 4)) / 2, 1e-9);
  EXPECT_NEAR(factor(2, 4), (factor(1, 8) + factor(4, 4)) / 2, 1e-9);
  EXPECT_NEAR(factor(8, 2), factor(4, 4), 1e-9);  // none is wider
  profiles[2].tensor = profiles[3].tensor = 2;
  EXPECT_NEAR(factor(2, 2), factor(1, 4), 1e-9);  // the wider one is of another tensor size
}

TEST(TimeLayout, GemmsWaitForTheGathersOfGradientsUnlessTheyTakeTheirParts) {
  const auto tensor_seconds = [](const char* sequence, bool gathers_under_gemms,
                                 const std::string& other = "batch.micro=2") {
    Cluster cluster{.name = "two", .link_latency = 0};
    GpuKind gpu{.name = "g", .memory = 24e9, .bandwidth = 1e12};
    for (double& peak : gpu.peak) peak = 3e13;
    gpu.gathers_under_gemms = gathers_under_gemms;
    cluster.nodes = {{.gpu = gpu, .gpus = 2, .link = 1e11}};
    const deck::Deck deck = gpt2_deck({"run.device=cuda", "parallel.tensor=2", "parallel.data=1",
                                       fmt::format("parallel.sequence={}", sequence), other},
                                      2);
    return time_layout(deck, 50257, cluster, all_nodes(cluster)).time.tensor;
  };
  // Of 12 blocks: forward two all-reduces, backward half of two; and those of embedding and head.
  // Under sequence parallelism three quarters of the backward pass's two.
  const double without = tensor_seconds("false", false);
  EXPECT_NEAR(tensor_seconds("true", false) / without, (12 * 3.5 + 3) / (12 * 3.0 + 3), 1e-9);
  EXPECT_EQ(tensor_seconds("false", true), without);
  // GEMMs that take parts, and are long here, hide half of the gathers of the forward pass, of one
  // of the backward pass's two, and of its reduce-scatters: 3 and 2.5 halves of an all-reduce are
  // left.
  EXPECT_NEAR(tensor_seconds("true", true) / without, (12 * 2.75 + 3) / (12 * 3.0 + 3), 1e-9);
  // Not of fp32, nor parts of 128 rows.
  for (const char* other : {"precision.compute=fp32", "model.sequence=64"})
    EXPECT_NEAR(tensor_seconds("true", true, other) / tensor_seconds("false", true, other),
                (12 * 3.5 + 3) / (12 * 3.0 + 3), 1e-9)
        << other;
}

TEST(TimeLayout, DeferredWeightGradientsOverlapWithNoCollectives) {
  const auto tensor_seconds = [](const char* sequence, const char* schedule) {
    Cluster cluster{.name = "four", .link_latency = 0};
    GpuKind gpu{.name = "g", .memory = 24e9, .bandwidth = 1e12};
    gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
    cluster.nodes = {{.gpu = gpu, .gpus = 4, .link = 1e11}};
    const deck::Deck deck =
        gpt2_deck({"run.device=cuda", "parallel.tensor=2", "parallel.pipeline=2", "parallel.data=1",
                   fmt::format("parallel.sequence={}", sequence),
                   fmt::format("parallel.schedule={}", schedule)},
                  4);
    return time_layout(deck, 50257, cluster, all_nodes(cluster)).time.tensor;
  };
  // All-reduces are no longer halved; under sequence parallelism reduce-scatters are not, and both
  // gathers of gradients come once more: an all-reduce and one and a half, for each block.
  const double without = tensor_seconds("false", "zero-bubble") - tensor_seconds("false", "1f1b");
  EXPECT_GT(without, 0);
  EXPECT_NEAR(tensor_seconds("true", "zero-bubble") - tensor_seconds("true", "1f1b"), 1.5 * without,
              1e-9);
}

TEST(TimeLayout, TakesMeasuredCollectivesAndRecomputation) {
  const deck::Deck deck = gpt2_deck({"run.device=cuda", "parallel.tensor=2", "parallel.data=1",
                                     "batch.global=4", "recompute.granularity=full"},
                                    2);
  Cluster cluster{.name = "two"};
  cluster.nodes = {{.gpu = profiled_gpu(deck), .gpus = 2, .link = 1e9}};
  const StepTime time = time_layout(deck, 50257, cluster, all_nodes(cluster)).time;
  const Profile& profile = cluster.nodes[0].gpu.measured->profiles[0];
  const double block = profile.forward.block;
  // Forward, recomputed and backward; of 12 blocks. Recomputation needs one all-reduce of two.
  EXPECT_NEAR(time.tensor, 12 * 0.2 * block, 1e-9);
  EXPECT_NEAR(time.recompute, 12 * (profile.own->recompute_full + 0.05 * block), 1e-9);
  EXPECT_GT(time.optimizer, 1e-4);
}

TEST(PassTimes, RecomputationLeavesOutWhatOnlyTheOutputNeeds) {
  GpuKind gpu{.name = "g", .bandwidth = 1e12};
  gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
  ModelShape shape = model_shape(gpt2_deck({"run.device=cuda"}), 50257);
  const PassTimes pre = pass_times(gpu, shape);
  EXPECT_NEAR(pre.recompute_full + pre.recompute_output, pre.forward.block, 1e-12);
  EXPECT_GT(pre.recompute_output, 0.2 * pre.forward.block);  // fc2 is a third of the GEMMs
  shape.reads_output = true;
  EXPECT_EQ(pass_times(gpu, shape).recompute_full, pre.forward.block);
}

// Inside a node copy engines exchange shards, of which half is hidden, and NCCL sums whole
// gradients.
TEST(TimeLayout, CollectivesOfDataRanksHideBetweenNodesAndHalfByCopies) {
  const auto seconds = [](std::int64_t gpus, const char* overlap, int zero = 3) {
    Cluster cluster{.name = "two"};
    GpuKind gpu{.name = "g", .memory = 24e9, .bandwidth = 1e12};
    gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
    cluster.nodes = {{.gpu = gpu, .count = 2 / gpus, .gpus = gpus, .link = 1e11, .network = 1e11}};
    const deck::Deck deck =
        gpt2_deck({"run.device=cuda", "batch.global=16", fmt::format("parallel.zero={}", zero),
                   fmt::format("parallel.overlap.gradients={}", overlap),
                   fmt::format("parallel.overlap.parameters={}", overlap)},
                  2);
    return time_layout(deck, 50257, cluster, all_nodes(cluster)).time.data;
  };
  EXPECT_EQ(seconds(2, "true", 0), seconds(2, "false", 0));
  EXPECT_NEAR(seconds(2, "true") / seconds(2, "false"), 0.54, 0.04);
  EXPECT_LT(seconds(1, "true"), 0.3 * seconds(1, "false"));
}

TEST(ModelShape, OfLlamaHasItsWidths) {
  const ModelShape shape = model_shape(gpt2_deck({"run.device=cuda", "model.family=llama",
                                                  "model.kv_heads=4", "model.head_dim=128"}),
                                       50257);
  EXPECT_EQ(shape.head_share, 2.0);
  EXPECT_NEAR(shape.kv_share, 1.0 / 3, 1e-12);
  EXPECT_TRUE(shape.gated && shape.rotary && !shape.biases);
}

TEST(ExpectedStep, NamesThePartThatDiffers) {
  ExpectedStep expected{.source = "the profile of G", .calibrated = true};
  expected.time = {
      .total = 0.1, .compute = 0.07, .bubble = 0.01, .data = 0.015, .optimizer = 0.005};
  EXPECT_EQ(describe(expected),
            "expected   100.0 ms a step, by the profile of G: passes 80.0, reduction 15.0, "
            "optimizer 5.0");
  EXPECT_EQ(compare(expected, {.ms = 104}),
            "expected   100.0 ms a step, measured 104.0: 4.0 % longer");
  EXPECT_EQ(
      compare(expected, {.ms = 80}),
      "expected   100.0 ms a step, measured 80.0: 20.0 % shorter; log.timers: true tells which "
      "part differs");
  EXPECT_EQ(compare(expected, {.ms = 150, .passes = 82, .reduction = 61, .optimizer = 7}),
            "expected   100.0 ms a step, measured 150.0: 50.0 % longer; the reduction of gradients "
            "takes 61.0 ms instead of 15.0");
  const deck::Deck deck = gpt2_deck({"run.device=cuda", "parallel.data=2"}, 2);
  Cluster cluster = four_gpus(24e9);
  EXPECT_NE(describe(expected_step(deck, 50257, cluster)).find("not calibrated"),
            std::string::npos);
  cluster.nodes[0].gpu = profiled_gpu(deck);
  const ExpectedStep profiled = expected_step(deck, 50257, cluster);
  EXPECT_TRUE(profiled.calibrated);
  EXPECT_EQ(profiled.source, "the profile of g");
  EXPECT_DOUBLE_EQ(profiled.time.total,
                   time_layout(deck, 50257, cluster, all_nodes(cluster)).time.total);
}

TEST(TimeLayout, PartsSumToTheTotal) {
  const Cluster cluster = four_gpus(80e9);
  for (const char* layout : {"parallel.tensor=4", "parallel.pipeline=4", "parallel.data=4"}) {
    const deck::Deck deck =
        gpt2_deck({"run.device=cuda", "batch.global=32", layout, "recompute.granularity=full"}, 4);
    const StepTime time = time_layout(deck, 50257, cluster, all_nodes(cluster)).time;
    EXPECT_NEAR(time.pipeline() + time.data + time.embedding + time.optimizer, time.total, 1e-12);
    EXPECT_GT(time.compute, 0);
    EXPECT_GT(time.recompute, 0);
    EXPECT_EQ(time.tensor > 0, deck.parallel.tensor > 1) << layout;
    EXPECT_EQ(time.bubble > 1e-9, deck.parallel.pipeline > 1) << layout;
    EXPECT_EQ(time.data > 0, *deck.parallel.data > 1) << layout;
  }
  EXPECT_EQ(message_of<DeckError>([&] {
              time_layout(gpt2_deck({"run.device=cuda"}, 8), 50257, cluster, all_nodes(cluster));
            }),
            "the layout has 8 ranks (parallel.tensor * pipeline * data), but cluster 'four' has 4 "
            "GPUs");
}

}  // namespace
}  // namespace trireme::plan
