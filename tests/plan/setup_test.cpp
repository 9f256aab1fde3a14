#include "plan/setup.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.hpp"
#include "decks.hpp"

namespace trireme::plan {
namespace {

TEST(Setup, TokenizerFiles) {
  EXPECT_FALSE(tokenizer_spec(gpt2_deck()).has_value());
  const auto spec = tokenizer_spec(
      gpt2_deck({"data.tokenizer.type=gpt2", "data.tokenizer.vocab=v", "data.tokenizer.merges=m"}));
  ASSERT_TRUE(spec.has_value());
  EXPECT_EQ(spec->type, "gpt2");
  EXPECT_EQ(spec->vocab, "v");
  EXPECT_EQ(spec->merges, "m");
  EXPECT_EQ(spec->model, "");
}

TEST(Setup, Layout) {
  const grid::Layout found = layout(
      gpt2_deck({"parallel.tensor=2", "parallel.pipeline=4", "parallel.partition=0-6-6-0"}, 16));
  EXPECT_EQ(found.tensor, 2);
  EXPECT_EQ(found.pipeline, 4);
  EXPECT_EQ(found.data, 2);
  EXPECT_EQ(found.partition, (std::vector<int>{0, 6, 6, 0}));
  EXPECT_EQ(found.chunks, 1);
  deck::Deck unresolved = gpt2_deck();
  unresolved.parallel.data.reset();
  EXPECT_THROW(layout(unresolved), InternalError);
}

TEST(Setup, PipelineShape) {
  const auto plain = pipeline_shape(gpt2_deck({"parallel.pipeline=4"}, 8));
  EXPECT_EQ(plain.kind, pipeline::ScheduleKind::one_f_one_b);
  EXPECT_EQ(plain.stages, 4);
  EXPECT_EQ(plain.chunks, 1);
  EXPECT_EQ(plain.micro_batches, 8);
  const auto zero = gpt2_deck({"parallel.pipeline=4", "parallel.schedule=zero-bubble"}, 8);
  EXPECT_EQ(pipeline_shape(zero).kind, pipeline::ScheduleKind::zero_bubble);
  const auto deck = gpt2_deck(
      {"parallel.pipeline=4", "parallel.schedule=interleaved", "parallel.interleave=3"}, 8);
  EXPECT_EQ(pipeline_shape(deck).kind, pipeline::ScheduleKind::interleaved);
  EXPECT_EQ(pipeline_shape(deck).chunks, 3);
  EXPECT_EQ(layout(deck).chunks, 3);
  EXPECT_EQ(layout(deck).partition, (std::vector<int>{3, 3, 3, 3}));
}

TEST(Setup, Recompute) {
  using What = model::Recompute::What;
  const auto found = [](const std::vector<std::string>& words, std::int64_t ranks = 1) {
    return stage_config(gpt2_deck(words, ranks), {.size = 50257, .eod = {}}).recompute;
  };
  EXPECT_EQ(found({}).what, What::nothing);
  EXPECT_EQ(found({"recompute.granularity=selective"}).what, What::norms);
  EXPECT_EQ(found({"recompute.granularity=full"}).what, What::uniform);
  EXPECT_EQ(found({"recompute.granularity=full"}).layers, 1);
  const auto block =
      found({"recompute.granularity=full", "recompute.method=block", "recompute.layers=5"});
  EXPECT_EQ(block.what, What::block);
  EXPECT_EQ(block.layers, 5);
  EXPECT_FALSE(block.moves_inputs());
  const auto moved = found({"recompute.granularity=full", "recompute.partition=true",
                            "recompute.offload=true", "parallel.tensor=2"},
                           2);
  EXPECT_TRUE(moved.partition && moved.offload);
}

TEST(Setup, MicroBatches) {
  EXPECT_EQ(micro_batches(gpt2_deck({}, 1)), 16);
  EXPECT_EQ(micro_batches(gpt2_deck({"parallel.tensor=2"}, 8)), 4);
}

TEST(Setup, ModelAndOptimizer) {
  const auto model = model::make_spec(
      gpt2_deck({"model.positions=2048", "model.dropout.attention=0.25", "run.seed=7",
                 "model.embedding_layernorm=true", "model.layernorm_eps=1e-6"}),
      {.size = 50304, .eod = 256});
  const model::BlockSpec& block = model.blocks.front();
  EXPECT_EQ(model.vocab, 50304);
  EXPECT_EQ(model.layers(), 12);
  EXPECT_EQ(block.mlp.width, 4 * 768);
  EXPECT_EQ(block.attention.heads, 12);
  EXPECT_EQ(block.attention.head_dim, 64);
  EXPECT_EQ(model.embedding.positions, 2048);
  EXPECT_EQ(block.attention.dropout, 0.25);
  EXPECT_EQ(block.dropout, 0.1);
  EXPECT_EQ(model.embedding.dropout, 0.1);
  EXPECT_EQ(model.seed, 7u);
  EXPECT_FALSE(model.documents.reset_positions || model.documents.reset_attention);
  const auto reset =
      model::make_spec(gpt2_deck({"data.reset_positions=true", "data.reset_attention=true"}),
                       {.size = 257, .eod = 256})
          .documents;
  EXPECT_TRUE(reset.reset_positions && reset.reset_attention);
  EXPECT_EQ(block.norm.eps, 1e-6);
  EXPECT_EQ(model.head.norm->eps, 1e-6);
  EXPECT_TRUE(model.embedding.norm.has_value());
  EXPECT_TRUE(model.head.tied);
  const auto optimizer = optimizer_config(gpt2_deck(
      {"optimizer.beta2=0.95", "optimizer.clip=0.5", "parallel.zero=0", "parallel.bucket=1000"}));
  EXPECT_EQ(optimizer.beta1, 0.9);
  EXPECT_EQ(optimizer.beta2, 0.95);
  EXPECT_EQ(optimizer.clip, 0.5);
  EXPECT_EQ(optimizer.zero, model::ZeroStage::none);
  EXPECT_EQ(optimizer.bucket, 1000);
  EXPECT_EQ(optimizer.type, optim::OptimizerType::adamw);
  const auto sgd = optimizer_config(gpt2_deck({"optimizer.type=sgd", "optimizer.momentum=0.9"}));
  EXPECT_EQ(sgd.type, optim::OptimizerType::sgd);
  EXPECT_EQ(sgd.momentum, 0.9);
}

TEST(Setup, ZeroStageAndOverlapSayHowWeightsAndGradientsAreSharded) {
  const auto expect = [&](std::vector<std::string> words, model::ZeroStage stage, int weights,
                          int gradients) {
    SCOPED_TRACE(words.front());
    const model::StoreOptions store = store_options(gpt2_deck(words));
    EXPECT_TRUE(store.gradients);
    EXPECT_EQ(store.zero, stage);
    EXPECT_EQ(optimizer_config(gpt2_deck(words)).zero, stage);
    EXPECT_EQ(store.weight_sharding(2).buffers(), weights);
    EXPECT_EQ(store.gradient_sharding(2).buffers(), gradients);
  };
  using enum model::ZeroStage;
  expect({"parallel.zero=0"}, none, 0, 0);
  expect({"parallel.zero=1"}, optimizer_state, 0, 0);
  expect({"parallel.zero=2"}, gradients, 0, 2);
  expect({"parallel.zero=3"}, weights, 2, 2);
  expect({"parallel.zero=3", "parallel.overlap.gradients=false"}, weights, 2, 1);
  expect({"parallel.zero=3", "parallel.overlap.parameters=false"}, weights, 1, 2);
}

TEST(Setup, PrecisionNamesATypeForEachRoleOfATensor) {
  const auto made = [](std::vector<std::string> words) { return precision(gpt2_deck(words)); };
  EXPECT_EQ(made({"precision.compute=fp32"}), Precision());
  EXPECT_EQ(made({"precision.compute=fp32", "precision.gradients=same"}), Precision());
  Precision expected{.weights = DType::bf16,
                     .activations = DType::bf16,
                     .gemm = DType::bf16,
                     .gemm_gradients = DType::bf16};
  EXPECT_EQ(made({"precision.compute=bf16"}), expected);
  expected.gradients = DType::bf16;
  EXPECT_EQ(made({"precision.compute=bf16", "precision.gradients=same"}), expected);
  expected = mixed_precision(DType::bf16);
  expected.gemm = DType::float8_e4m3;
  expected.gemm_gradients = DType::float8_e5m2;
  EXPECT_EQ(made({"precision.compute=bf16", "precision.gemm=fp8"}), expected);
  expected.gemm_gradients = DType::float8_e4m3;
  EXPECT_EQ(made({"precision.compute=bf16", "precision.gemm=fp8", "precision.fp8.backward=e4m3"}),
            expected);
}

TEST(Setup, EndsOfTheModelStayInTheActivationsTypeAndBlocksFollowTheRecipe) {
  const auto spec = [](const std::string& keys) {
    return model_spec(gpt2_deck({"precision.gemm=fp8", "precision.fp8=" + keys}), {.size = 100});
  };
  const model::ModelSpec all = spec("{recipe: tensor}"), ends = spec(
                                                             "{recipe: block, "
                                                             "first_layers: 1, "
                                                             "last_layers: 2}");
  for (std::int64_t layer = 0; layer < all.layers(); ++layer) {
    EXPECT_TRUE(all.blocks[layer].fp8 && !all.blocks[layer].fp8_blocks) << layer;
    EXPECT_EQ(ends.blocks[layer].fp8, layer >= 1 && layer < ends.layers() - 2) << layer;
    EXPECT_TRUE(ends.blocks[layer].fp8_blocks) << layer;
  }
}

TEST(Setup, MfuIsAShareOfTheActivationsPeak) {
  EXPECT_EQ(mfu_type(gpt2_deck({"run.device=cuda"})), DType::bf16);
  EXPECT_EQ(mfu_type(gpt2_deck({"run.device=cuda", "precision.gemm=fp8"})), DType::bf16);
  EXPECT_EQ(mfu_type(gpt2_deck()), DType::f32);
}

TEST(Setup, Fp8LeavesTheFirstAndTheLastLayersOut) {
  const model::ModelSpec spec =
      model_spec(gpt2_deck({"precision.gemm=fp8", "precision.fp8.first_layers=1",
                            "precision.fp8.last_layers=2"}),
                 {.size = 50257});
  for (std::int64_t layer = 0; layer < 12; ++layer)
    EXPECT_EQ(spec.blocks[layer].fp8, layer >= 1 && layer < 10) << layer;
}

TEST(Setup, LossScaleHasTheDialectsDefaults) {
  const auto scaler = [](std::vector<std::string> words, const char* compute = "fp16") {
    words.push_back(std::string("precision.compute=") + compute);
    return loss_scaler(gpt2_deck(words));
  };
  EXPECT_EQ(scaler({}).scale(), 4294967296.0);
  EXPECT_TRUE(scaler({}).is_dynamic());
  EXPECT_EQ(scaler({}).state().hysteresis_left, 2);
  EXPECT_EQ(scaler({"precision.loss_scale.dialect=deepspeed"}).scale(), 65536.0);
  EXPECT_EQ(scaler({"precision.loss_scale.initial=4096"}).scale(), 4096.0);
  EXPECT_EQ(scaler({"precision.loss_scale.value=128"}).scale(), 128.0);
  EXPECT_FALSE(scaler({"precision.loss_scale.value=128"}).is_dynamic());
  for (const char* compute : {"bf16", "fp32"}) {
    EXPECT_EQ(scaler({}, compute).scale(), 1.0);
    EXPECT_FALSE(scaler({"precision.loss_scale.value=dynamic"}, compute).is_dynamic());
    EXPECT_EQ(scaler({"precision.loss_scale.value=64"}, compute).scale(), 64.0);
  }
}

TEST(Setup, LearningRateCountsWhatTheDialectCounts) {
  const auto megatron = learning_rate(gpt2_deck());  // 64 samples an iteration
  EXPECT_EQ(megatron.at(0), 0.0);
  EXPECT_DOUBLE_EQ(megatron.at(50 * 64), 3e-4);
  EXPECT_DOUBLE_EQ(megatron.at(100 * 64), 6e-4);
  EXPECT_NEAR(megatron.at(1000 * 64), 0.0, 1e-18);
  const auto v1 = learning_rate(gpt2_deck({"schedule.dialect=v1", "schedule.type=linear"}));
  EXPECT_DOUBLE_EQ(v1.at(50), 3e-4);
  EXPECT_DOUBLE_EQ(v1.at(100), 6e-4);
}

TEST(Setup, RangeTestAndWeightDecayCountWhatTheDialectCounts) {
  const std::vector<std::string> range{"schedule.type=lr-range-test",
                                       "schedule.peak=",
                                       "schedule.decay=",
                                       "schedule.warmup=",
                                       "schedule.minimum=1e-4",
                                       "schedule.range_test.step=10",
                                       "schedule.range_test.rate=3"};
  const std::vector<std::string> ramp{"optimizer.weight_decay=0.1", "schedule.weight_decay.end=0.3",
                                      "schedule.weight_decay.type=linear"};
  for (const auto& [dialect, unit] : {std::pair("megatron", 64), std::pair("v1", 1)}) {
    const std::string choice = std::string("schedule.dialect=") + dialect;
    auto overrides = range;
    overrides.push_back(choice);
    EXPECT_DOUBLE_EQ(learning_rate(gpt2_deck(overrides)).at(5 * unit), 2.5e-4);
    overrides.push_back("schedule.range_test.staircase=true");
    EXPECT_DOUBLE_EQ(learning_rate(gpt2_deck(overrides)).at(15 * unit), 4e-4);
    overrides = ramp;
    overrides.push_back(choice);
    EXPECT_DOUBLE_EQ(weight_decay(gpt2_deck(overrides)).at(500 * unit), 0.2);
  }
  EXPECT_EQ(weight_decay(gpt2_deck()).at(77), 0.01);
}

TEST(Setup, FractionsOfTheDecayAreNotRounded) {
  const auto rate = learning_rate(gpt2_deck({"schedule.peak=3e-3", "schedule.decay=100",
                                             "schedule.dialect=v1", "schedule.warmup=0.015"}));
  EXPECT_DOUBLE_EQ(rate.at(1), 3e-3 / 1.5);
}

// Where the last full batch ends before.
TEST(Setup, WeightDecayRampEndsWithTheSamples) {
  const auto decay = weight_decay(
      gpt2_deck({"train.iterations=", "train.samples=100", "optimizer.weight_decay=0.1",
                 "schedule.weight_decay.end=0.3", "schedule.weight_decay.type=linear"}));
  EXPECT_DOUBLE_EQ(decay.at(50), 0.2);
}

// The printed learning rates of a Megatron-LM run: warm-up over 1 % of 320,000 iterations of 64
// samples, the schedule held back by the 15 iterations that overflowed.
TEST(Setup, LearningRateOfAPublishedLog) {
  const auto rate = learning_rate(
      gpt2_deck({"schedule.peak=1.5e-4", "schedule.decay=320000", "schedule.warmup=0.01"}));
  EXPECT_NEAR(rate.at((30 - 15) * 64), 7.031e-7, 5e-11);
  EXPECT_NEAR(rate.at((40 - 15) * 64), 1.172e-6, 5e-10);
  EXPECT_NEAR(rate.at((50 - 15) * 64), 1.641e-6, 5e-10);
}

TEST(Setup, SplitsThatARunReads) {
  const auto uses = [](const std::vector<std::string>& overrides) {
    const deck::Deck deck = gpt2_deck(overrides);
    std::string used;
    for (const auto split : {data::Split::train, data::Split::valid, data::Split::test})
      if (uses_split(deck, split)) used += std::string(data::name_of(split)) + " ";
    return used;
  };
  EXPECT_EQ(uses({}), "train valid test ");
  EXPECT_EQ(uses({"data.split=90,10,0"}), "train valid ");
  EXPECT_EQ(uses({"data.split=100"}), "train ");
  EXPECT_EQ(uses({"data.split=0,1,0"}), "train valid ");
  EXPECT_EQ(uses({"data.split=100", "data.valid=held_out"}), "train valid ");
  EXPECT_EQ(uses({"data.split=90,10", "data.test=held_out"}), "train valid test ");
  EXPECT_EQ(uses({"data.split=100", "data.test=held_out"}), "train test ");
  EXPECT_EQ(uses({"data.split=8,0,2"}), "train test ");
  EXPECT_EQ(uses({"evaluate.at_end=false"}), "train ");
  EXPECT_EQ(uses({"evaluate.at_end=false", "evaluate.every=10"}), "train valid ");
}

TEST(Setup, RunLength) {
  const auto length = run_length(gpt2_deck({"evaluate.every=6400 samples"}));
  EXPECT_EQ(length.train_samples, 64'000);
  EXPECT_EQ(length.evaluations, 10);
  EXPECT_EQ(length.evaluation_samples, 10 * 64);
  const auto samples = run_length(gpt2_deck({"train.iterations=", "train.samples=10000"}));
  EXPECT_EQ(samples.train_samples, 10'000);
  EXPECT_EQ(samples.evaluations, 0);
}

TEST(Setup, RunLengthWithARampUp) {
  const std::vector<std::string> ramp = {"train.iterations=",    "train.samples=10000",
                                         "batch.micro=1",        "batch.global=16",
                                         "batch.rampup.start=2", "batch.rampup.step=2",
                                         "schedule.decay=10000", "batch.rampup.samples=1000"};
  const auto evaluations = [&](const std::string& every) {
    auto overrides = ramp;
    overrides.push_back("evaluate.every=" + every);
    return run_length(gpt2_deck(overrides)).evaluations;
  };
  EXPECT_EQ(run_length(gpt2_deck(ramp)).train_samples, 10'000);
  EXPECT_EQ(run_length(gpt2_deck(ramp)).evaluation_samples, 10 * 16);
  EXPECT_EQ(evaluations("100 iterations"), 7) << "of 748";
  EXPECT_EQ(evaluations("1000 samples"), 9) << "9992 samples";
  EXPECT_EQ(evaluations("1 sample"), 748) << "in each iteration, once";
}

// Memory is planned for the largest batch: smaller ones need no more slots.
TEST(Setup, SmallerBatchesOfARampUpNeedNoMoreSlots) {
  for (const std::string schedule : {"1f1b", "interleaved", "zero-bubble"}) {
    const bool interleaved = schedule == "interleaved";
    const std::string chunks = interleaved ? "3" : "1";
    const int group = interleaved ? 4 : 1;
    auto shape = pipeline_shape(gpt2_deck(
        {"parallel.pipeline=4", "parallel.schedule=" + schedule, "parallel.interleave=" + chunks},
        4));
    for (int stage = 0; stage < 4; ++stage) {
      int slots = 0;
      for (int micro_batches = group; micro_batches <= 16; micro_batches += group) {
        shape.micro_batches = micro_batches;
        const int needed = pipeline::count_slots(pipeline::make_schedule(shape, stage));
        EXPECT_GE(needed, slots) << schedule << ", stage " << stage << ", " << micro_batches;
        slots = needed;
      }
    }
  }
}

TEST(Setup, SplitConfig) {
  const auto config =
      split_config(gpt2_deck({"data.train=corpus", "data.split=8,1,1", "data.seed=5",
                              "data.eod_loss=false", "data.index_cache=cache"}),
                   data::Split::valid, {.size = 300, .eod = 256}, 77);
  EXPECT_TRUE(config.single());
  EXPECT_EQ(config.prefixes.front(), "corpus");
  EXPECT_EQ(config.common.split_weights, (std::vector<double>{8, 1, 1}));
  EXPECT_EQ(config.common.split, data::Split::valid);
  EXPECT_EQ(config.common.samples, 77);
  EXPECT_EQ(config.common.seed, 5);
  EXPECT_EQ(config.common.format.sequence, 1024);
  EXPECT_EQ(config.common.format.vocab, 300);
  EXPECT_EQ(config.common.format.eod, 256);
  EXPECT_FALSE(config.common.format.eod_loss);
  EXPECT_EQ(config.common.index_cache, "cache");
}

TEST(Setup, DatasetsHaveNamesWeightsAndPartsOfTheirOwn) {
  const deck::Deck deck =
      gpt2_deck({"data.train=[0.3, wiki, 0.7, other/web]", "data.valid=[held, wiki]",
                 "data.corpora={wiki: data/wiki, held: data/held}", "data.split=8,1,1"});
  const auto config = [&](data::Split split) {
    return split_config(deck, split, {.size = 300, .eod = 256}, 77);
  };
  using Prefixes = std::vector<std::filesystem::path>;
  const data::GptBlendConfig train = config(data::Split::train);
  EXPECT_EQ(train.prefixes, (Prefixes{"data/wiki", "other/web"}));
  EXPECT_EQ(train.weights, (std::vector<double>{0.3, 0.7}));
  // The part that has datasets of its own has none in data.train; the others keep theirs.
  EXPECT_EQ(train.common.split_weights, (std::vector<double>{8, 0, 1}));
  EXPECT_EQ(config(data::Split::test).prefixes, train.prefixes);
  EXPECT_EQ(config(data::Split::test).common.split_weights, (std::vector<double>{8, 0, 1}));
  const data::GptBlendConfig valid = config(data::Split::valid);
  EXPECT_EQ(valid.prefixes, (Prefixes{"data/held", "data/wiki"}));
  EXPECT_TRUE(valid.weights.empty());
  EXPECT_TRUE(valid.common.split_weights.empty());
}

}  // namespace
}  // namespace trireme::plan
