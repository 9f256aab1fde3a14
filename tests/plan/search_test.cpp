// Times, partitions and the layout search.
#include "plan/search/layout_search.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "deck/describe.hpp"
#include "deck/load.hpp"
#include "decks.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {
namespace {

const std::filesystem::path kInputs = TRIREME_SOURCE_DIR "/inputs";

/// GPUs that a profile gives the times of embedding, block and head, in seconds.
GpuKind measured_gpu(double embedding, double block, double head) {
  GpuKind gpu{.name = "measured", .memory = 1e12, .bandwidth = 1e12};
  gpu.peak[static_cast<int>(deck::Compute::bf16)] = 1e14;
  gpu.profiles.push_back({.hidden = 768,
                          .heads = 12,
                          .sequence = 1024,
                          .micro = 4,
                          .forward = {embedding, block, head}});
  return gpu;
}

deck::Deck pipeline_deck(int stages, int layers, int micro_batches) {
  return gpt2_deck({"run.device=cuda", fmt::format("model.layers={}", layers),
                    fmt::format("parallel.pipeline={}", stages),
                    fmt::format("parallel.partition={}-{}",
                                fmt::join(std::vector<int>(stages - 1, 0), "-"), layers),
                    fmt::format("batch.global={}", 4 * micro_batches)},
                   stages);
}

/// The least makespan of all partitions.
double brute_force(const LayoutTimes& times, int layers) {
  std::vector<std::int64_t> partition(times.stages(), 0);
  double best = 1e9;
  const std::function<void(int, int)> visit = [&](int stage, int left) {
    if (stage + 1 == times.stages()) {
      partition[stage] = left;
      best = std::min(best, times.makespan(partition));
      return;
    }
    for (int n = 0; n <= left; ++n) {
      partition[stage] = n;
      visit(stage + 1, left - n);
    }
  };
  visit(0, layers);
  return best;
}

TEST(BestPartition, IsThatOfBruteForceInAllSmallCases) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0.0, 3.0);
  int proven = 0, cases = 0;
  for (int stages = 2; stages <= 5; ++stages)
    for (int layers = 1; layers <= (stages < 5 ? 9 : 7); layers += 2)
      for (const int micro_batches : {1, 2, 3, 5, 8, 13}) {
        const double block = 0.5 + seconds(random);
        Cluster cluster{.name = "small"};
        // Two kinds of GPU, every other time with links, of which messages take a share of a block.
        const bool two_kinds = cases % 2 == 1, links = cases % 3 == 2;
        const double link = 4 * 1024 * 768 * 2 / (0.2 * seconds(random) + 0.01);
        const auto nodes = [&](double factor, std::int64_t count) {
          return NodeKind{.gpu = measured_gpu(seconds(random), factor * block, seconds(random)),
                          .count = count,
                          .gpus = 1,
                          .network = links ? std::optional(link) : std::nullopt};
        };
        const std::int64_t first = two_kinds ? stages / 2 : stages;
        cluster.nodes = {nodes(1, first)};
        if (two_kinds) cluster.nodes.push_back(nodes(1 + seconds(random), stages - first));
        const deck::Deck deck = pipeline_deck(stages, layers, micro_batches);
        const NodeMap map(cluster, all_nodes(cluster));
        const LayoutTimes times(deck, model_shape(deck, 50257), map);
        const Partition found = best_partition(
            times, layers, std::vector<std::int64_t>(stages, layers), /*max_simulations=*/100000);
        ASSERT_EQ(std::accumulate(found.layers.begin(), found.layers.end(), 0), layers);
        EXPECT_DOUBLE_EQ(times.makespan(found.layers), found.seconds);
        EXPECT_NEAR(found.seconds, brute_force(times, layers), 1e-9 * found.seconds)
            << stages << " stages, " << layers << " layers, " << micro_batches << " micro-batches, "
            << (two_kinds ? "two kinds" : "one kind") << (links ? ", links" : "");
        proven += found.exact;
        ++cases;
      }
  EXPECT_EQ(proven, cases);
}

TEST(BestPartition, TakesMillisecondsFor48LayersOn32GpusOfTwoKinds) {
  Cluster cluster{.name = "two"};
  cluster.nodes = {{.gpu = measured_gpu(0.16e-3, 1.64e-3, 0.73e-3), .count = 2, .gpus = 4},
                   {.gpu = measured_gpu(0.30e-3, 2.34e-3, 2.12e-3), .count = 6, .gpus = 4}};
  const deck::Deck deck = pipeline_deck(32, 48, 64);
  const NodeMap map(cluster, all_nodes(cluster));
  const LayoutTimes times(deck, model_shape(deck, 50257), map);
  const std::vector<std::int64_t> any(32, 48);
  const std::clock_t start = std::clock();
  const Partition found = best_partition(times, 48, any, 8);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 1.0)
      << "some 10 ms are usual; sanitizers on a busy machine take 20 times that";
  // The faster GPUs have at least as many layers.
  EXPECT_GE(std::accumulate(found.layers.begin(), found.layers.begin() + 8, 0), 12);
  EXPECT_EQ(std::accumulate(found.layers.begin(), found.layers.end(), 0), 48);
}

TEST(LayoutSearch, NamesThePublishedPipelinesBetterPartition) {
  const Cluster cluster = load_cluster(kInputs / "clusters/a10x32.yaml");
  deck::Deck deck = deck::load(kInputs / "gpt2-xl-a10x32.yaml", {},
                               {.need_data = false, .automatic = deck::Device::cuda});
  deck::resolve_world_size(deck, 32);
  const TimedLayout given = time_layout(deck, 50257, cluster, all_nodes(cluster));
  // The run's log: 1.374 to 1.424 s.
  EXPECT_NEAR(given.time.total, 1.387, 1e-3);
  EXPECT_EQ(given.memory, plan_run(deck, 50257).largest().memory.total());
  const SearchResult found = search_layouts(deck, 50257, cluster);
  ASSERT_FALSE(found.ranked.empty());
  const TimedLayout& best = found.ranked.front();
  EXPECT_NEAR(best.time.total, 1.0396, 1e-3);
  EXPECT_TRUE(best.exact_partition);
  EXPECT_EQ(best.deck.parallel.tensor * best.deck.parallel.pipeline * *best.deck.parallel.data, 32);
  EXPECT_EQ(best.deck.parallel.pipeline, 8);
  const std::vector<std::int64_t> last(best.deck.parallel.partition->end() - 1,
                                       best.deck.parallel.partition->end());
  EXPECT_EQ(last, std::vector<std::int64_t>{5});
}

Cluster four_gpus(double memory) {
  Cluster cluster{.name = "four"};
  GpuKind gpu{.name = "g", .memory = memory, .bandwidth = 1e12};
  gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
  cluster.nodes = {{.gpu = gpu, .count = 2, .gpus = 2, .link = 100e9, .network = 10e9, .price = 3}};
  return cluster;
}

TEST(LayoutSearch, PrunesNothingThatIsFaster) {
  const Cluster cluster = four_gpus(24e9);
  const deck::Deck deck = gpt2_deck({"run.device=cuda", "batch.micro=1", "batch.global=16"}, 4);
  const SearchResult all = search_layouts(deck, 50257, cluster, {.top = 100000});
  const SearchResult few = search_layouts(deck, 50257, cluster, {.top = 3});
  ASSERT_GT(all.ranked.size(), 100u);
  ASSERT_EQ(few.ranked.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(few.ranked[i].time.total, all.ranked[i].time.total,
                1e-9 * all.ranked[i].time.total);
  EXPECT_LT(few.timed, all.timed);
}

TEST(LayoutSearch, ProposesOnlyWhatFits) {
  for (const double memory : {3e9, 4.5e9, 8e9}) {
    const Cluster cluster = four_gpus(memory);
    const deck::Deck deck = gpt2_deck({"run.device=cuda", "batch.global=16"}, 4);
    const SearchResult found = search_layouts(deck, 50257, cluster, {.top = 100000});
    for (const TimedLayout& layout : found.ranked) {
      EXPECT_LE(static_cast<double>(layout.memory), memory);
      EXPECT_EQ(layout.memory, plan_run(layout.deck, 50257).largest().memory.total());
      // What the deck's rules forbid is not proposed.
      deck::Deck again =
          deck::parse(deck::print_deck(layout.deck), "again.yaml", {}, {.need_data = false});
      deck::resolve_world_size(again, layout.ranks());
      EXPECT_EQ(again.parallel, layout.deck.parallel);
    }
    EXPECT_TRUE(memory < 4e9 || !found.ranked.empty());
  }
}

TEST(LayoutSearch, ComparesTimeWithMoney) {
  const Cluster cluster = four_gpus(24e9);
  const deck::Deck deck = gpt2_deck({"run.device=cuda", "batch.global=16"}, 4);
  const SearchResult found = search_layouts(deck, 50257, cluster, {.top = 1});
  ASSERT_GE(found.pareto.size(), 2u);
  for (std::size_t i = 1; i < found.pareto.size(); ++i) {
    EXPECT_GT(found.pareto[i].time.total, found.pareto[i - 1].time.total);
    EXPECT_LT(*found.pareto[i].dollars_per_step, *found.pareto[i - 1].dollars_per_step);
  }
  EXPECT_DOUBLE_EQ(*found.pareto[0].dollars_per_step,
                   found.pareto[0].time.total * 3 / 3600 * std::ssize(found.pareto[0].order));
  const double budget = *found.pareto.back().dollars_per_step * 1000 * 1.001;
  const SearchResult cheap = search_layouts(deck, 50257, cluster, {.top = 1, .budget = budget});
  ASSERT_EQ(cheap.ranked.size(), 1u);
  EXPECT_LE(*cheap.ranked[0].dollars_per_step * 1000, budget);
}

TEST(LayoutSearch, KeepsWhatItIsTold) {
  const Cluster cluster = four_gpus(24e9);
  const deck::Deck deck = gpt2_deck({"run.device=cuda", "batch.global=16", "parallel.tensor=2"}, 4);
  for (const TimedLayout& layout :
       search_layouts(deck, 50257, cluster, {.top = 50, .fixed = {"parallel.tensor"}}).ranked)
    EXPECT_EQ(layout.deck.parallel.tensor, 2);
}

TEST(LayoutSearch, TellsHowManyRanksALayoutMayHave) {
  Cluster cluster = load_cluster(kInputs / "clusters/h200x8-nodes.yaml");
  cluster.nodes[0].gpus = 1;
  cluster.nodes[0].count = 49;
  const SearchResult none = search_layouts(gpt2_deck({"run.device=cuda"}), 50257, cluster);
  EXPECT_TRUE(none.ranked.empty());
  EXPECT_EQ(none.fewer_ranks, 48);
  const deck::Deck five =
      gpt2_deck({"run.device=cuda", "parallel.pipeline=5", "parallel.partition=2-2-2-3-3"}, 5);
  EXPECT_EQ(search_layouts(five, 50257, cluster, {.fixed = {"parallel.pipeline"}}).fewer_ranks, 40);
  cluster.nodes[0].gpu.memory = 1e6;
  cluster.nodes[0].count = 48;
  const SearchResult small = search_layouts(gpt2_deck({"run.device=cuda"}), 50257, cluster);
  EXPECT_TRUE(small.ranked.empty());
  EXPECT_EQ(small.fewer_ranks, std::nullopt) << "48 ranks have layouts, which do not fit";
}

TEST(LayoutSearch, SearchesAThousandGpusWithFewSimulations) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "instrumented and not optimised, the search takes twenty times longer";
#endif
  const Cluster cluster = load_cluster(kInputs / "clusters/h200x8-nodes.yaml");
  ASSERT_EQ(cluster.gpus(), 1024);
  const deck::Deck deck = gpt2_deck({"run.device=cuda", "model.layers=72", "model.hidden=3072",
                                     "model.heads=24", "batch.global=1024", "batch.micro=1"},
                                    1024);
  const std::clock_t start = std::clock();
  const SearchResult found = search_layouts(deck, 50257, cluster);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(found.ranked.size(), 10u);
  // 823 simulations are 1.4 s of a core that does nothing else; a busy one is allowed ten times
  // two.
  EXPECT_GT(found.considered, 7000);
  EXPECT_LT(found.timed, 1000);
  EXPECT_LT(seconds, 20.0);
}

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
    const auto slower = [&](const UnitSeconds& a, const UnitSeconds& b) {
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

TEST(TimeLayout, GemmsWaitForTheGathersOfGradients) {
  const auto tensor_seconds = [](const char* sequence) {
    Cluster cluster{.name = "two", .link_latency = 0};
    GpuKind gpu{.name = "g", .memory = 24e9, .bandwidth = 1e12};
    gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
    cluster.nodes = {{.gpu = gpu, .gpus = 2, .link = 1e11}};
    const deck::Deck deck = gpt2_deck({"run.device=cuda", "parallel.tensor=2", "parallel.data=1",
                                       fmt::format("parallel.sequence={}", sequence)},
                                      2);
    return time_layout(deck, 50257, cluster, all_nodes(cluster)).time.tensor;
  };
  // Of 12 blocks: forward two all-reduces, backward half of two; and those of embedding and head.
  // Under sequence parallelism three quarters of the backward pass's two.
  EXPECT_NEAR(tensor_seconds("true") / tensor_seconds("false"), (12 * 3.5 + 3) / (12 * 3.0 + 3),
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

TEST(TimeLayout, CollectivesOfDataRanksHideOnlyBetweenNodes) {
  const auto seconds = [](std::int64_t gpus, const char* overlap) {
    Cluster cluster{.name = "two"};
    GpuKind gpu{.name = "g", .memory = 24e9, .bandwidth = 1e12};
    gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
    cluster.nodes = {{.gpu = gpu, .count = 2 / gpus, .gpus = gpus, .link = 1e11, .network = 1e11}};
    const deck::Deck deck = gpt2_deck({"run.device=cuda", "batch.global=16", "parallel.zero=3",
                                       fmt::format("parallel.overlap.gradients={}", overlap),
                                       fmt::format("parallel.overlap.parameters={}", overlap)},
                                      2);
    return time_layout(deck, 50257, cluster, all_nodes(cluster)).time.data;
  };
  EXPECT_EQ(seconds(2, "true"), seconds(2, "false"));
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
