// What has no counterpart or contradicts, by its text.
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "convert/convert.hpp"
#include "core/error.hpp"
#include "fixture.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

/// The words of a short command line, then `more`.
std::vector<std::string> words_with(const std::string& more,
                                    const std::string& launcher = "python pretrain_gpt.py") {
  std::istringstream text(launcher +
                          " --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length "
                          "32 --max-position-embeddings 32 --lr 1e-3 --train-iters 10 --data-path "
                          "d --tokenizer-type NullTokenizer --vocab-size 100 " +
                          more);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

/// The only error that `more` leads to, without its place.
std::string error_of(const std::string& more,
                     const std::string& launcher = "python pretrain_gpt.py") {
  const std::string text = errors_of(
      {.words = words_with("--micro-batch-size 2 --global-batch-size 8 " + more, launcher)});
  const std::string begin = "command line: ", end = "\n1 error; no deck was written.";
  if (!text.starts_with(begin) || !text.ends_with(end)) return text;
  return text.substr(begin.size(), text.size() - begin.size() - end.size());
}

/// The deck of a command line with `more`.
std::string deck_of(const std::string& more) {
  return convert({.words = words_with("--micro-batch-size 2 --global-batch-size 8 " + more)}).deck;
}

TEST(Contradictions, ShortCommandLineIsGood) { EXPECT_EQ(error_of(""), ""); }

TEST(Contradictions, JsonBatchOfDeepSpeedsExample) {
  const fs::path data = fs::path(TRIREME_SOURCE_DIR) / "tests/data/flags";
  EXPECT_EQ(errors_of({.file = data / "r0_deepspeed_3d.sh"}),
            (data / "r0_ds_config.json").string() +
                ": \"train_batch_size\": 2048: the command line gives 144 = micro-batch 9 * "
                "accumulation steps 16 * data ranks 1 (8 ranks: deepspeed --num_nodes 1 --num_gpus "
                "8); write 144 there, or remove it from the file\n1 error; no deck was written.");
}

TEST(Contradictions, NamesUnknownFlags) {
  EXPECT_EQ(
      error_of("--num-layer 3"),
      "unknown flag '--num-layer'; did you mean '--num-layers'? (--ignore num-layer skips it)");
  EXPECT_EQ(error_of("--zzzzzzzzz 3"), "unknown flag '--zzzzzzzzz' (--ignore zzzzzzzzz skips it)");
  EXPECT_EQ(errors_of({.words = words_with("--micro-batch-size 2 --zzzz 3 4 --swiglu"),
                       .ignored = {"zzzz", "swiglu"}}),
            "");
}

TEST(Contradictions, NamesIgnoredFlagsThatAreNotThere) {
  const Result result = convert({.words = words_with("--micro-batch-size 2 --zzzz 3"),
                                 .ignored = {"zzzz", "zzz", "fp16.enabled"}});
  const std::string notes = fmt::format("{}", fmt::join(result.notes, "\n"));
  EXPECT_NE(notes.find("--zzzz 3 is ignored (--ignore)"), std::string::npos) << notes;
  EXPECT_NE(notes.find("--ignore zzz has no effect: there is no such flag or key"),
            std::string::npos);
  EXPECT_NE(notes.find("--ignore fp16.enabled has no effect"), std::string::npos);
  EXPECT_EQ(notes.find("--ignore zzzz has"), std::string::npos);
}

TEST(Contradictions, WhatHasNoCounterpart) {
  EXPECT_EQ(error_of("--swiglu"),
            "--swiglu: Trireme has GPT-2's network (learned positions, LayerNorm, GELU, biases) "
            "and Llama's, for which the recipe lacks --normalization RMSNorm, "
            "--position-embedding-type rope, --disable-bias-linear");
  EXPECT_EQ(error_of("--position-embedding-type yarn"),
            "--position-embedding-type yarn: Trireme has learned_absolute and rope");
  EXPECT_EQ(error_of("--zzzzzzzzz 3", "python pretrain_t5.py"),
            "pretrain_t5.py trains a model that Trireme does not support: it trains GPT and BERT");
  EXPECT_EQ(error_of("--zzzzzzzzz 3 --num-experts 2 4"),
            "--num-experts 2 4: Trireme has no mixture of experts; train the dense model instead");
}

TEST(Contradictions, LookupsOfShardedMasterWeights) {
  const std::string flags = "--fp32-embedding --fp32-tokentypes --use-distributed-optimizer ";
  const auto made = [&](const std::string& type) {
    return convert(
        {.words = words_with("--micro-batch-size 2 --global-batch-size 8 " + flags + type)});
  };
  const Result sharded = made("--bf16");
  EXPECT_EQ(sharded.deck.find("embedding: fp32"), std::string::npos) << sharded.deck;
  EXPECT_NE(sharded.deck.find("zero: 1"), std::string::npos) << sharded.deck;
  EXPECT_EQ(std::ranges::count(sharded.notes,
                               "command line: --fp32-embedding: embeddings are looked up in bf16: "
                               "parallel.zero = 1 shards the fp32 weights; losses differ by "
                               "rounding"),
            1)
      << sharded.deck;
  EXPECT_NE(made("").deck.find("embedding: fp32"), std::string::npos);  // compute: fp32
  EXPECT_NE(deck_of("--bf16 --fp32-tokentypes").find("embedding: fp32"), std::string::npos);
}

TEST(Contradictions, Fp8OfTransformerEngine) {
  const auto has = [](const std::string& deck, const char* text) {
    return deck.find(text) != std::string::npos;
  };
  const std::string hybrid = deck_of(
      "--bf16 --fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 "
      "--num-layers-at-end-in-bf16 0 --fp8-amax-history-len 1024 --fp8-param-gather");
  EXPECT_TRUE(has(hybrid, "gemm: fp8")) << hybrid;
  EXPECT_TRUE(has(hybrid, "backward: e5m2")) << hybrid;
  EXPECT_TRUE(has(hybrid, "recipe: tensor")) << hybrid;
  EXPECT_TRUE(has(hybrid, "first_layers: 1")) << hybrid;
  EXPECT_TRUE(has(hybrid, "last_layers: 0")) << hybrid;
  const std::string delayed = deck_of("--bf16 --fp8-e4m3 --num-layers-at-start-in-bf16 3");
  EXPECT_TRUE(has(delayed, "backward: e4m3")) << delayed;
  EXPECT_FALSE(has(delayed, "first_layers")) << delayed;
  EXPECT_TRUE(has(deck_of("--bf16 --fp8-format hybrid --fp8-recipe blockwise"), "recipe: block"));
  EXPECT_FALSE(has(deck_of("--bf16 --fp8-recipe delayed"), "fp8:"));
  EXPECT_EQ(error_of("--bf16 --fp8-format e5m2"), "--fp8-format e5m2: expected hybrid or e4m3");
  EXPECT_EQ(error_of("--bf16 --fp8-format hybrid --fp8-recipe mxfp8"),
            "--fp8-recipe mxfp8: Trireme has the recipes tensorwise and blockwise");
  EXPECT_EQ(error_of("--bf16 --fp8-format hybrid --no-fp8-wgrad"),
            "--no-fp8-wgrad: with precision.gemm: fp8 the GEMMs of weight gradients are in FP8; "
            "remove it");
}

TEST(Contradictions, WhatSplitKeepsIsEvaluated) {
  const auto has = [](const std::string& deck, const char* text) {
    return deck.find(text) != std::string::npos;
  };
  const std::string tests = deck_of("--split 8,0,2 --eval-interval 50 --eval-iters 7");
  EXPECT_TRUE(has(tests, "  iterations: 7 ")) << tests;
  EXPECT_TRUE(has(tests, "#   --eval-interval 50: --split has no validation part\n"));
  const std::string nothing = deck_of("--split 1 --eval-iters 7");
  EXPECT_FALSE(has(nothing, "iterations: 7")) << nothing;
  EXPECT_TRUE(has(nothing, "#   --eval-iters 7: --split has no validation part\n"));
}

TEST(Contradictions, OneExpertIsNone) {
  const std::string deck = deck_of("--num-experts 1 --moe-loss-coeff 0.01");
  EXPECT_NE(deck.find("#   --moe-loss-coeff 0.01: is for a mixture of experts\n"),
            std::string::npos)
      << deck;
}

TEST(Contradictions, NewRunsFromOldWeights) {
  EXPECT_EQ(error_of("--finetune --load old"),
            "--finetune: loading a checkpoint resumes its run; exporting and importing it with "
            "'trireme-convert hf' makes one of iteration 0");
  const std::string deck = deck_of("--finetune --no-load-optim");
  EXPECT_NE(deck.find("#   --no-load-optim: has no effect without --load\n"), std::string::npos)
      << deck;
}

TEST(Contradictions, LengthsInTokens) {
  const std::string network =
      "python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length "
      "32 --max-position-embeddings 32 --lr 1e-3 --data-path d --tokenizer-type NullTokenizer "
      "--vocab-size 100 --micro-batch-size 2 --global-batch-size 8 ";
  const auto deck_of_tokens = [&](const std::string& more) {
    std::istringstream text(network + more);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    return convert({.words = words}).deck;
  };
  const auto expect = [](const std::string& deck, const std::string& text) {
    EXPECT_NE(deck.find(text), std::string::npos) << text << "\n" << deck;
  };
  const std::string deck = deck_of_tokens(
      "--train-tokens 320_000 --train-samples 30_000 --lr-decay-tokens 256000 --lr-warmup-tokens "
      "3300");
  expect(deck, "  samples: 10000                      # --train-tokens 320_000 / 32 = 10000\n");
  expect(deck, "  decay: 8000 samples                 # --lr-decay-tokens 256000 / 32 = 8000\n");
  expect(deck, "  warmup: 103 samples ");
  expect(deck, "#   --train-samples 30_000: --train-tokens 320_000 wins\n");
  const std::string shorter = deck_of_tokens("--train-tokens 320000 --train-samples 9000");
  expect(shorter, "  samples: 9000 ");
  expect(shorter, "#   --train-tokens 320000: --train-samples 9000 ends the run before\n");
  EXPECT_EQ(error_of("--lr-decay-tokens 2560"),
            "--lr-decay-tokens 2560: counts tokens, but the run counts iterations; give "
            "--lr-decay-iters 10 = tokens / (--seq-length * --global-batch-size)");
}

TEST(Contradictions, PartitionsOfDeepSpeed) {
  const auto deck_of_method = [](const std::string& method) {
    return convert({.words = words_with("--micro-batch-size 2 --global-batch-size 8 "
                                        "--pipeline-model-parallel-size 2 --pp-partition-method " +
                                            method,
                                        "pretrain_gpt.py")})
        .deck;
  };
  EXPECT_NE(deck_of_method("type:transformer|embedding").find("partition: 2-2 "),
            std::string::npos);
  EXPECT_NE(deck_of_method("type:transformer").find("all stages have the same number of layers"),
            std::string::npos);
  EXPECT_EQ(error_of("--pipeline-model-parallel-size 2 --pp-partition-method parameters",
                     "pretrain_gpt.py"),
            "--pp-partition-method parameters: has no deck key; give --balance with the layers of "
            "each stage, such as 4-5-5-4");
}

TEST(Contradictions, KeptInputsThatNoRanksShare) {
  const auto deck_of = [](const std::string& more) {
    return convert(
               {.words = words_with(
                    "--micro-batch-size 2 --global-batch-size 8 --tensor-model-parallel-size 2 " +
                        more,
                    "mpirun -n 2 python pretrain_gpt.py")})
        .deck;
  };
  const std::string share = "--distribute-saved-activations";
  const std::string full = "--recompute-granularity full --recompute-method uniform ";
  const auto expect = [&](const std::string& more, const std::string& text) {
    const std::string deck = deck_of(more);
    EXPECT_NE(deck.find(text), std::string::npos) << deck;
  };
  expect(full + share, "  partition: true ");
  expect(full + "--sequence-parallel " + share,
         "#   " + share + ": --sequence-parallel shards these activations already\n");
  expect("--recompute-activations " + share,
         "#   " + share + ": has no effect without full recomputation\n");
  expect(share, "#   " + share + ": has no effect without --checkpoint-activations\n");
}

TEST(Contradictions, Values) {
  EXPECT_EQ(error_of("--seed"), "--seed has no value");
  EXPECT_EQ(error_of("--fp16 3"), "'3' is not a value of any flag");
  EXPECT_EQ(error_of("--seed x"), "--seed x: run.seed = x: expected a whole number");
  EXPECT_EQ(error_of("--hidden-dropout 1.5"),
            "--hidden-dropout 1.5: model.dropout.hidden = 1.5: must be from 0 to below 1");
  EXPECT_EQ(error_of("--lr-decay-style cube").substr(0, 56),
            "--lr-decay-style cube: schedule.type = cube: allowed are");
}

TEST(Contradictions, OptimizerOfAnotherKind) {
  const std::string plain = deck_of("--optimizer sgd --adam-beta2 0.95");
  EXPECT_NE(plain.find("momentum: 0.9 "), std::string::npos) << plain;
  EXPECT_NE(plain.find("#   --adam-beta2 0.95: --optimizer sgd does not use it\n"),
            std::string::npos);
  EXPECT_NE(deck_of("--optimizer sgd --sgd-momentum .5").find("momentum: 0.5 "), std::string::npos);
  EXPECT_NE(deck_of("--sgd-momentum .5").find("#   --sgd-momentum .5: is for --optimizer sgd\n"),
            std::string::npos);
}

TEST(Contradictions, LossScaleThatStays) {
  const std::string deck = deck_of("--fp16 --loss-scale 8192 --hysteresis 2");
  EXPECT_NE(deck.find("    value: 8192 "), std::string::npos) << deck;
  EXPECT_EQ(deck.find("dialect: megatron"), std::string::npos);
  EXPECT_NE(deck.find("#   --hysteresis 2: --loss-scale 8192 is static\n"), std::string::npos);
  EXPECT_NE(deck_of("--fp16 --loss-scale 0").find("value: dynamic "), std::string::npos);
}

TEST(Contradictions, Layout) {
  EXPECT_EQ(error_of("--tensor-model-parallel-size 3", "pretrain_gpt.py"),
            "parallel.tensor = 3 does not divide model.heads = 4 (try 1, 2 or 4)");
  EXPECT_EQ(error_of("--pipeline-model-parallel-size 5", "pretrain_gpt.py"),
            "parallel.pipeline = 5 is more than model.layers = 4 (try 4 or fewer, or a "
            "parallel.partition with stages without layers)");
  EXPECT_EQ(error_of("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
                     "torchrun --nproc_per_node 6 pretrain_gpt.py"),
            "6 ranks (--nproc_per_node 6 --nnodes 1) are not a multiple of tensor * pipeline = 2 * "
            "2 = 4 (--ranks N gives another number)");
  EXPECT_EQ(
      error_of("", "srun -N 2 --ntasks-per-node=3 python pretrain_gpt.py"),
      "batch.global = 8 is not a multiple of batch.micro * parallel.data = 2 * 6 = 12 (try 12)");
  EXPECT_EQ(error_of("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
                     "pretrain_gpt.py"),
            "--num-layers-per-virtual-pipeline-stage 3: --num-layers 4 is not a multiple of 2 "
            "stages * 3 layers = 6");
  EXPECT_EQ(error_of("--balance 1-2"),
            "parallel.partition = 1-2 has 2 parts, but parallel.pipeline = 1 (try 4)");
}

TEST(Contradictions, TwoWordsForOneThing) {
  EXPECT_EQ(
      error_of("--lr-warmup-fraction .1 --lr-warmup-iters 2"),
      "--lr-warmup-iters 2: '--lr-warmup-fraction .1' sets the same length; keep one of the two");
  EXPECT_EQ(error_of("--batch-size 2"),
            "--batch-size 2: '--micro-batch-size 2' is the same option of another version; keep "
            "one of the two");
  EXPECT_EQ(error_of("--train-samples 80"),
            "--train-samples 80: '--train-iters 10' sets the length of the run as well; keep one "
            "of the two");
  EXPECT_EQ(error_of("--fp16 --bf16"),
            "--bf16: '--fp16' asks for another type; keep one of the two");
  EXPECT_EQ(error_of("--lr-decay-samples 60"),
            "--lr-decay-samples 60: counts samples, but '--train-iters' counts iterations; "
            "Megatron-LM refuses the two together");
}

TEST(Contradictions, Batch) {
  EXPECT_EQ(errors_of({.words = words_with("--micro-batch-size 2", "pretrain_gpt.py")}),
            "command line: the global batch is micro-batch * data ranks, and the launcher does not "
            "say how many ranks there are; give --ranks N\n1 error; no deck was written.");
  EXPECT_EQ(errors_of({.words = words_with("--micro-batch-size 2", "pretrain_gpt.py"), .ranks = 4}),
            "");
  EXPECT_EQ(error_of("--gas 3"),
            "--gas 3: gives 6 = micro-batch 2 * accumulation steps 3 * data ranks 1 (1 rank: one "
            "process, without a launcher), not --global-batch-size 8; remove it");
  EXPECT_EQ(error_of("--gas 4"), "");
  EXPECT_EQ(error_of("--rampup-batch-size 2 4 100 --train-iters 10"),
            "command line: --rampup-batch-size 2 4 100: needs --train-samples; Megatron-LM refuses "
            "it with --train-iters\ncommand line: --rampup-batch-size 2 4 100: increments of 4 do "
            "not lead from 2 to the global batch 8\n2 errors; no deck was written.");
}

class WithJson : public FolderTest {
 protected:
  /// What converting with this ds_config.json gives.
  Result convert_with(const std::string& json, const std::string& more) const {
    return convert(
        {.words = words_with("--micro-batch-size 2 --deepspeed --deepspeed_config x " + more,
                             "deepspeed --num_gpus 4 pretrain_gpt.py"),
         .ds_config = file("ds.json", json)});
  }
  /// The errors, without the path of the JSON file.
  std::string errors_with(const std::string& json, const std::string& more = "") const {
    std::string text = message_of<Error>([&] { convert_with(json, more); });
    const std::string path = folder_.string() + "/";
    for (std::size_t at; (at = text.find(path)) != std::string::npos;) text.erase(at, path.size());
    return text;
  }
};

TEST_F(WithJson, BatchesThatDoNotFit) {
  EXPECT_EQ(errors_with(R"({"train_batch_size": 8})"), "");
  EXPECT_EQ(errors_with(R"({"train_batch_size": 9})").substr(0, 117),
            "ds.json: \"train_batch_size\": 9: the command line gives 8 = micro-batch 2 * "
            "accumulation steps 1 * data ranks 4 (4 ran");
  EXPECT_EQ(errors_with(R"({"train_micro_batch_size_per_gpu": 3})"),
            "ds.json: \"train_micro_batch_size_per_gpu\": 3: --micro-batch-size 2 says 2; write "
            "the same value in both, or remove it from the file\n1 error; no deck was written.");
}

TEST_F(WithJson, ItsTypeRules) {
  const Result result = convert_with(
      R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12}})", "");
  ASSERT_EQ(result.notes.size(), 2u);
  EXPECT_EQ(result.notes[0],
            "command line: the command line says fp32, " + (folder_ / "ds.json").string() +
                " \"fp16.enabled\": true says fp16: DeepSpeed reads the type from its JSON file");
  EXPECT_NE(result.deck.find("compute: fp16"), std::string::npos);
  EXPECT_NE(result.deck.find("initial: 4096"), std::string::npos);
  EXPECT_NE(result.deck.find("dialect: deepspeed"), std::string::npos);
}

TEST_F(WithJson, ItsLossScaleRules) {
  const auto deck_with = [&](const std::string& json) { return convert_with(json, "--fp16").deck; };
  const std::string fixed =
      deck_with(R"({"fp16": {"enabled": true, "loss_scale": 128, "loss_scale_window": 500}})");
  EXPECT_NE(fixed.find("    value: 128 "), std::string::npos) << fixed;
  EXPECT_EQ(fixed.find("dialect: deepspeed"), std::string::npos);
  EXPECT_NE(fixed.find("\"fp16.loss_scale_window\": 500: \"fp16.loss_scale\": 128 is static"),
            std::string::npos);
  const std::string automatic =
      deck_with(R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 500}})");
  EXPECT_NE(automatic.find("    window: 500 "), std::string::npos) << automatic;
  const std::string none =
      deck_with(R"({"bf16": {"enabled": true}, "fp16": {"loss_scale_window": 500}})");
  EXPECT_NE(none.find("#   \"fp16.loss_scale_window\": 500: bf16 uses no loss scale\n"),
            std::string::npos)
      << none;
}

TEST_F(WithJson, ZeroAndPipelines) {
  EXPECT_EQ(
      errors_with(R"({"zero_optimization": {"stage": 2}})", "--pipeline-model-parallel-size 2"),
      "ds.json: \"zero_optimization.stage\": 2: DeepSpeed does not pipeline with ZeRO 2 and 3, but "
      "the recipe has 2 stages (write stage 1)\n1 error; no deck was written.");
}

TEST_F(WithJson, ItsScheduleWins) {
  const Result result = convert_with(
      R"({"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 5}}})",
      "--lr-decay-style cosine");
  EXPECT_NE(result.deck.find("type: lr-range-test"), std::string::npos);
  EXPECT_NE(result.deck.find("    step: 5 "), std::string::npos);
  EXPECT_NE(result.deck.find("    rate: 1 "), std::string::npos);
  EXPECT_NE(result.deck.find("#   --lr-decay-style cosine: DeepSpeed's scheduler"),
            std::string::npos);
  EXPECT_NE(errors_with(R"({"scheduler": {"type": "OneCycle"}})").find("only LRRangeTest"),
            std::string::npos);
}

TEST_F(WithJson, PartsThatAreSwitchedOff) {
  EXPECT_EQ(errors_with(R"({"curriculum_learning": {"enabled": false, "curriculum_type": "seqlen"},
                            "zero_optimization": {"stage": 1, "cpu_offload": false,
                                                  "offload_optimizer": {"device": "none"}}})"),
            "");
  EXPECT_EQ(errors_with(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"),
            "ds.json: \"zero_optimization.offload_optimizer\": ...: Trireme has no CPU or NVMe "
            "offload; remove it from the recipe\n1 error; no deck was written.");
}

TEST_F(WithJson, UnknownAndBadFiles) {
  EXPECT_EQ(errors_with(R"({"train_batch_sise": 8})"),
            "ds.json: unknown key \"train_batch_sise\"; did you mean 'train_batch_size'? (--ignore "
            "train_batch_sise skips it)\n1 error; no deck was written.");
  EXPECT_EQ(errors_with("[1]"), "'ds.json' is not a JSON object");
  EXPECT_EQ(errors_with("{\n \"steps_per_print\": 1,\n}").substr(0, 62),
            "'ds.json' is not JSON: at line 3, column 1: syntax error while");
}

}  // namespace
}  // namespace trireme::convert::flags
