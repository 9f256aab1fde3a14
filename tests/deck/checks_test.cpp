// The errors of values that do not go together, by their text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decks.hpp"

namespace trireme::deck {
namespace {

TEST(DeckChecks, ModelAndLayoutMustFit) {
  expect_lines({
      {"hidden: 64", "hidden: 66",
       "bad.yaml:4:3: model.heads = 8 does not divide model.hidden = 66 (try 2, 3, 6, 11, 22 or "
       "33)"},
      {"model:\n  layers: 4\n  hidden: 64",
       "run: {device: cuda}\nmodel:\n  layers: 4\n  hidden: 4096",
       "bad.yaml:5:3: model.heads = 8 makes heads of 512, but the kernels for GPUs take at most "
       "256 "
       "(try 16, 32, 64, 128, 256 or 512, or run.device: host)"},
      {"model:\n  layers: 4\n  hidden: 64\n  heads: 8",
       "run: {device: cuda}\nmodel:\n  layers: 4\n  hidden: 20480\n  heads: 128",
       "bad.yaml:4:3: model.hidden = 20480, but the kernels for GPUs take at most 16384 (try "
       "run.device: host)"},
      {"hidden: 64", "hidden: 64\n  positions: 16",
       "bad.yaml:4:3: model.positions = 16 is less than model.sequence = 32 (try 32)"},
      {"batch:", "parallel:\n  tensor: 5\nbatch:",
       "bad.yaml:7:3: parallel.tensor = 5 does not divide model.heads = 8 (try 1, 2, 4 or 8)"},
      {"  sequence: 32\n", "  sequence: 32\n  ffn: 100\nparallel: {tensor: 8}\n",
       "bad.yaml:7:12: parallel.tensor = 8 does not divide model.ffn = 100 (try 1, 2 or 4)"},
      {"  sequence: 32\n", "  sequence: 30\nparallel: {tensor: 4, sequence: true}\n",
       "bad.yaml:6:12: parallel.tensor = 4 does not divide model.sequence = 30, which "
       "parallel.sequence cuts (try 1 or 2, or parallel.sequence: false)"},
      {"batch:", "parallel:\n  pipeline: 6\nbatch:",
       "bad.yaml:7:3: parallel.pipeline = 6 is more than model.layers = 4 (try 4 or fewer, or a "
       "parallel.partition with stages without layers)"},
      {"batch:", "parallel:\n  pipeline: 6\n  partition: 2-2\nbatch:",
       "bad.yaml:8:3: parallel.partition = 2-2 has 2 parts, but parallel.pipeline = 6 (try "
       "parallel.pipeline: 2)"},
      {"batch:", "parallel:\n  pipeline: 2\n  partition: 0-2-2-0\nbatch:",
       "bad.yaml:8:3: parallel.partition = 0-2-2-0 has 4 parts, but parallel.pipeline = 2 (try "
       "2-2)"},
      {"batch:", "parallel:\n  pipeline: 4\n  partition: [0, 3, 2, 0]\nbatch:",
       "bad.yaml:8:3: parallel.partition = 0-3-2-0 has 5 layers, but model.layers = 4 (try "
       "1-1-1-1)"},
  });
}

TEST(DeckChecks, PipelineScheduleMustFit) {
  expect_lines({
      {"batch:", "parallel: {schedule: zero-bubble}\nbatch:",
       "bad.yaml:6:12: parallel.schedule = zero-bubble needs parallel.pipeline of 2 or more, not 1 "
       "(try parallel.schedule: 1f1b)"},
      {"batch:", "parallel: {schedule: interleaved, interleave: 2}\nbatch:",
       "bad.yaml:6:12: parallel.schedule = interleaved needs parallel.pipeline of 2 or more, not 1 "
       "(try parallel.schedule: 1f1b)"},
      {"batch:", "parallel: {schedule: interleaved, pipeline: 2}\nbatch:",
       "bad.yaml:6:12: parallel.schedule = interleaved needs chunks of layers to interleave (try "
       "parallel.interleave: 2)"},
      {"batch:", "parallel: {interleave: 2, pipeline: 2}\nbatch:",
       "bad.yaml:6:12: parallel.interleave = 2 has no effect while parallel.schedule = 1f1b (try "
       "parallel.schedule: interleaved)"},
      {"batch:", "parallel: {interleave: 2, pipeline: 2, schedule: zero-bubble}\nbatch:",
       "bad.yaml:6:12: parallel.interleave = 2 has no effect while parallel.schedule = zero-bubble "
       "(try parallel.schedule: interleaved)"},
      {"batch:", "parallel: {interleave: 3, pipeline: 2, schedule: interleaved}\nbatch:",
       "bad.yaml:6:12: parallel.pipeline * parallel.interleave = 2 * 3 = 6 does not divide "
       "model.layers = 4 (try parallel.interleave: 2)"},
      {"batch:", "parallel: {interleave: 2, pipeline: 4, schedule: interleaved}\nbatch:",
       "bad.yaml:6:12: parallel.pipeline * parallel.interleave = 4 * 2 = 8 does not divide "
       "model.layers = 4 (try model.layers: 8)"},
      {"batch:",
       "parallel:\n  {interleave: 2, pipeline: 2, schedule: interleaved, partition: 2-2}\nbatch:",
       "bad.yaml:7:55: parallel.partition = 2-2 with parallel.schedule = interleaved, which cuts "
       "the layers into equal chunks; leave parallel.partition out"},
      {"batch:",
       "parallel:\n  {interleave: 2, pipeline: 2, schedule: interleaved, overlap: {pipeline: "
       "false}}\nbatch:",
       "bad.yaml:7:65: parallel.overlap.pipeline = false with parallel.schedule = interleaved: "
       "stages in a ring would wait for each other (try parallel.overlap.pipeline: true)"},
      {"batch: {micro: 2, global: 16}",
       "parallel: {interleave: 2, pipeline: 2, schedule: interleaved}\n"
       "batch: {micro: 2, global: 6}",
       "bad.yaml:7:19: batch.global = 6 makes 3 micro-batches on each data rank; "
       "parallel.schedule = interleaved needs a multiple of parallel.pipeline = 2 (try 4 or 8)"},
      {"batch: {micro: 2, global: 16}",
       "parallel: {interleave: 2, pipeline: 2, schedule: interleaved, data: 4}\n"
       "batch: {micro: 2, global: 8}",
       "bad.yaml:7:19: batch.global = 8 makes 1 micro-batches on each data rank; "
       "parallel.schedule = interleaved needs a multiple of parallel.pipeline = 2 (try 16)"},
  });
}

TEST(DeckChecks, BatchScheduleAndLengthMustFit) {
  expect_lines({
      {"micro: 2", "micro: 3",
       "bad.yaml:6:19: batch.global = 16 is not a multiple of batch.micro = 3 (try 15 or 18)"},
      {"micro: 2", "micro: 32",
       "bad.yaml:6:20: batch.global = 16 is not a multiple of batch.micro = 32 (try 32)"},
      {"schedule:", "parallel: {data: 3}\nschedule:",
       "bad.yaml:6:19: batch.global = 16 is not a multiple of batch.micro * parallel.data = 2 * 3 "
       "= 6 (try 12 or 18)"},
      {"peak: 3e-4", "peak: 3e-4\n  minimum: 1",
       "bad.yaml:9:3: schedule.minimum = 1 is above schedule.peak = 0.0003 (try 0)"},
      {"peak: 3e-4", "peak: 3e-4\n  warmup: 100",
       "bad.yaml:9:3: schedule.warmup = 100 iterations is not shorter than schedule.decay = 100 "
       "iterations (try 0.01, a fraction of decay)"},
      {"peak: 3e-4", "minimum: 1e-4",
       "bad.yaml:7:1: missing key 'schedule.peak': Largest learning rate."},
      {"peak: 3e-4", "type: lr-range-test",
       "bad.yaml:8:3: schedule.type = lr-range-test starts from schedule.minimum, which is 0 (try "
       "1e-5)"},
      {"peak: 3e-4", "type: lr-range-test\n  minimum: 1e-4\n  peak: 1e-3",
       "bad.yaml:10:3: schedule.type = lr-range-test has no use for 'schedule.peak'; leave it out"},
      {"peak: 3e-4", "type: lr-range-test\n  minimum: 1e-4\n  warmup: 10",
       "bad.yaml:10:3: schedule.type = lr-range-test has no use for 'schedule.warmup'; leave it "
       "out"},
      {"peak: 3e-4", "type: lr-range-test\n  minimum: 1e-4\n  decay: 10",
       "bad.yaml:10:3: schedule.type = lr-range-test has no use for 'schedule.decay'; leave it "
       "out"},
      {"peak: 3e-4", "peak: 3e-4\n  range_test: {staircase: true}",
       "bad.yaml:9:16: 'schedule.range_test.staircase' needs schedule.type = lr-range-test, but it "
       "is cosine; leave it out"},
      {"peak: 3e-4", "peak: 3e-4\n  weight_decay: {end: 0.1}",
       "bad.yaml:9:18: schedule.weight_decay.end = 0.1 is not optimizer.weight_decay = 0.01, but "
       "schedule.weight_decay.type = constant (try type: linear)"},
      {"iterations: 100", "iterations: 100\n  samples: 3200",
       "bad.yaml:14:3: train.iterations = 100 and train.samples = 3200 both say how long to train; "
       "give one"},
      {"iterations: 100", "samples: 3",
       "bad.yaml:13:3: train.samples = 3 is less than batch.global = 16 (try 16)"},
      {"batch:", "optimizer: {momentum: 0.9}\nbatch:",
       "bad.yaml:6:13: optimizer.type = adamw has no use for 'optimizer.momentum'; leave it out"},
      {"batch:", "precision: {compute: bf16, gradients: same}\noptimizer: {type: lamb}\nbatch:",
       "bad.yaml:6:28: precision.gradients = same with precision.compute = bf16 leaves "
       "optimizer.type "
       "= lamb no fp32 room for its directions (try precision.gradients: fp32)"},
      {"batch:", "precision: {compute: bf16, embedding: fp32}\nbatch:",
       "bad.yaml:6:28: precision.embedding = fp32 with precision.compute = bf16 reads master "
       "weights, which parallel.zero = 1 shards over the data ranks (try parallel.zero: 0)"},
      {"batch:", "optimizer: {type: sgd, beta2: 0.95}\nbatch:",
       "bad.yaml:6:24: optimizer.type = sgd has no use for 'optimizer.beta2'; leave it out"},
      {"batch:", "optimizer: {muon: {scale: spectral}}\nbatch:",
       "bad.yaml:6:20: optimizer.type = adamw has no use for 'optimizer.muon.scale'; leave it out"},
      {"batch:", "optimizer: {rate: {head: 2}}\nbatch:",
       "bad.yaml:6:20: 'optimizer.rate.head' has no effect with model.tie_embeddings = true, where "
       "the output projection is the embedding; leave it out"},
      {"iterations: 100", "iterations: 100\n  spike: {window: 5}",
       "bad.yaml:14:11: 'train.spike.window' needs 'train.spike.above'; leave it out"},
      {"iterations: 100", "iterations: 100\n  spike: {back: 2}",
       "bad.yaml:14:11: 'train.spike.back' needs 'train.spike.above'; leave it out"},
      {"iterations: 100", "iterations: 100\n  spike: {above: 6, skip: 2}",
       "bad.yaml:14:21: 'train.spike.skip' needs 'train.spike.back'; leave it out"},
      {"iterations: 100", "iterations: 100\n  spike: {above: 6, back: 2}",
       "bad.yaml:14:21: 'train.spike.back' needs 'checkpoint.every': there is nothing to go back "
       "to"},
      {"iterations: 100",
       "iterations: 100\n  spike: {above: 6, back: 3}\ncheckpoint: {every: 10, keep: 2}",
       "bad.yaml:14:21: train.spike.back = 3 needs more checkpoints than checkpoint.keep = 2 (try "
       "checkpoint.keep: 3)"},
      {"iterations: 100",
       "iterations: 100\n  spike: {above: 6, back: 1, skip: 101}\ncheckpoint: {every: 10}",
       "bad.yaml:14:30: train.spike.skip = 101 skips more data than the run's 100 iterations take; "
       "leave it out, or skip less"},
      {"batch:", "precision: {loss_scale: {window: 500}}\nbatch:",
       "bad.yaml:6:26: 'precision.loss_scale.window' needs precision.compute = fp16, but it is "
       "fp32; "
       "leave it out"},
      {"batch:", "precision: {compute: fp16, loss_scale: {value: 1024, minimum: 2}}\nbatch:",
       "bad.yaml:6:54: 'precision.loss_scale.minimum' has no effect with "
       "precision.loss_scale.value "
       "= "
       "1024; leave one of them out"},
      {"batch:", "precision: {compute: fp16, loss_scale: {initial: 4, minimum: 8}}\nbatch:",
       "bad.yaml:6:53: precision.loss_scale.minimum = 8 is above precision.loss_scale.initial = 4 "
       "(try 1)"},
      {"batch:", "precision: {compute: fp16, loss_scale: {value: 0}}\nbatch:",
       "bad.yaml:6:41: precision.loss_scale.value = 0: must be above 0; the key's default is "
       "'dynamic'"},
      {"batch:", "precision: {fp8: {backward: e4m3}}\nbatch:",
       "bad.yaml:6:19: 'precision.fp8.backward' needs precision.gemm = fp8, but it is same; leave "
       "it out"},
      {"batch:", "precision: {gemm: fp8, fp8: {forward: e5m2}}\nbatch:",
       "bad.yaml:6:30: precision.fp8.forward = e5m2 is not built yet: two bits of mantissa are too "
       "few for activations and weights (try e4m3)"},
      {"batch:", "precision: {fp8: {recipe: block}}\nbatch:",
       "bad.yaml:6:19: 'precision.fp8.recipe' needs precision.gemm = fp8, but it is same; leave "
       "it out"},
      {"batch:", "precision: {gemm: fp8, fp8: {first_layers: 3, last_layers: 1}}\nbatch:",
       "bad.yaml:6:30: precision.fp8.first_layers + last_layers = 4 leave none of model.layers = 4 "
       "for FP8 (try fewer, or precision.gemm: same)"},
      {"batch:", "run: {device: cuda}\nprecision: {gemm: fp8, compute: fp32}\nbatch:",
       "bad.yaml:7:13: precision.gemm = fp8 with precision.compute = fp32: GPUs add FP8 GEMMs to "
       "16 bits (try precision.compute: bf16)"},
      {"batch:", "recompute: {granularity: selective, layers: 2}\nbatch:",
       "bad.yaml:6:37: 'recompute.layers' needs recompute.granularity = full, but it is selective; "
       "leave it out"},
      {"batch:", "recompute: {method: block}\nbatch:",
       "bad.yaml:6:13: 'recompute.method' needs recompute.granularity = full, but it is none; "
       "leave it out"},
      {"batch:", "recompute: {granularity: full, layers: 0}\nbatch:",
       "bad.yaml:6:32: recompute.layers = 0: must be from 1 to 10000"},
      {"batch:", "recompute: {partition: true}\nbatch:",
       "bad.yaml:6:13: 'recompute.partition' needs recompute.granularity = full, but it is none; "
       "leave it out"},
      {"batch:", "recompute: {granularity: selective, offload: true}\nbatch:",
       "bad.yaml:6:37: 'recompute.offload' needs recompute.granularity = full, but it is "
       "selective; leave it out"},
      {"batch:", "recompute: {contiguous: true}\nbatch:",
       "bad.yaml:6:13: 'recompute.contiguous' needs recompute.granularity = full, but it is none; "
       "leave it out"},
      {"batch:", "recompute: {granularity: full, partition: true}\nbatch:",
       "bad.yaml:6:32: recompute.partition = true with parallel.tensor = 1: there is no rank to "
       "share with; leave it out (recompute.offload: true saves more)"},
      {"batch:",
       "recompute: {granularity: full, partition: true}\nparallel: {tensor: 2, sequence: "
       "true}\nbatch:",
       "bad.yaml:6:32: recompute.partition = true has no effect with parallel.sequence = true, "
       "with "
       "which each tensor rank has a share of all inputs already; leave it out"},
      {"batch:",
       "recompute: {granularity: selective}\nparallel: {pipeline: 2, schedule: "
       "zero-bubble}\nbatch:",
       "bad.yaml:6:13: recompute.granularity = selective with parallel.schedule = zero-bubble, "
       "whose weight gradients need the activations longer (try parallel.schedule: 1f1b, or "
       "recompute.granularity: none)"},
      {"train:\n  it", "checkpoint: {keep_every: 100}\ntrain:\n  it",
       "bad.yaml:12:14: checkpoint.keep_every = 100 iterations has no effect while checkpoint.keep "
       "= all (try keep: 2)"},
      {"train:\n  it", "checkpoint: {local: {path: /a}}\ntrain:\n  it",
       "bad.yaml:12:22: checkpoint.local.path without checkpoint.local.every; give both or none"},
      {"train:\n  it", "checkpoint: {local: {every: 5}}\ntrain:\n  it",
       "bad.yaml:12:22: checkpoint.local.every without checkpoint.local.path; give both or none"},
      {"train:\n  it", "checkpoint: {local: {partner: true}}\ntrain:\n  it",
       "bad.yaml:12:22: checkpoint.local.partner = true has no effect without "
       "checkpoint.local.path; leave it out"},
  });
}

// The small deck with a ramp-up, on train.samples.
std::string ramped(const std::string& rampup, const std::string& rest = "") {
  std::string text =
      changed("global: 16", fmt::format("global: 16, rampup: {{{}}}{}", rampup, rest));
  return text.replace(text.find("iterations: 100"), 15, "samples: 10_000");
}

TEST(DeckChecks, ARampUpMustLeadToTheGlobalBatch) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"start: 2, step: 2",
       "6:31: missing key 'batch.rampup.samples': Batch-size ramp-up: samples "
       "until batch.global is reached, in equal steps."},
      {"start: 3, step: 2, samples: 1000",
       "6:40: batch.rampup.start = 3 is not a multiple of batch.micro = 2 (try 2 or 4)"},
      {"start: 2, step: 1, samples: 1000",
       "6:50: batch.rampup.step = 1 is not a multiple of batch.micro = 2 (try 2)"},
      {"start: 4, step: 8, samples: 1000",
       "6:50: batch.rampup.step = 8 does not divide batch.global - batch.rampup.start = 16 - 4 = "
       "12 (try 2, 4, 6 or 12)"},
      {"start: 16, step: 2, samples: 1000",
       "6:40: batch.rampup.start = 16 is not less than batch.global = 16 (try 2)"},
      {"start: 0, step: 2, samples: 1000",
       "6:40: batch.rampup.start = 0: must be from 1 to 4194304"},
  };
  for (const auto& [rampup, line] : cases)
    EXPECT_EQ(errors_of(ramped(rampup)), fmt::format("bad.yaml:{}{}", line, kOneError)) << rampup;
  EXPECT_EQ(errors_of(ramped("start: 2, step: 2, samples: 1000")), "");

  const std::string copies = "}\nparallel: {data: 2";
  EXPECT_EQ(errors_of(ramped("start: 2, step: 4, samples: 1000", copies)),
            "bad.yaml:6:40: batch.rampup.start = 2 is not a multiple of batch.micro * "
            "parallel.data = 2 * 2 = 4 (try 4)" +
                kOneError);
  const std::string chunks = "}\nparallel: {pipeline: 2, interleave: 2, schedule: interleaved";
  EXPECT_EQ(errors_of(ramped("start: 4, step: 2, samples: 1000", chunks)),
            "bad.yaml:6:50: batch.rampup.step = 2 is not a multiple of batch.micro * "
            "parallel.pipeline = 2 * 2 = 4 (try 4)" +
                kOneError);
  Deck deck = parse(ramped("start: 2, step: 2, samples: 1000"), "bad.yaml");
  EXPECT_THROW(resolve_world_size(deck, 2), DeckError);
}

TEST(DeckChecks, ARampUpCountsSamples) {
  expect_lines({
      {"global: 16", "global: 16, rampup: {start: 2, step: 2, samples: 1000}",
       "bad.yaml:6:31: batch.rampup needs train.samples: train.iterations = 100 does not say how "
       "much is trained while batches grow (try train.samples: 1600)"},
  });
  std::string text = ramped("start: 4, step: 2, samples: 1000");
  text.replace(text.find("10_000"), 6, "3");
  EXPECT_EQ(
      errors_of(text),
      "bad.yaml:13:3: train.samples = 3 is less than batch.rampup.start = 4 (try 4)" + kOneError);
}

TEST(DeckChecks, SkippedDataIsThatOfTheRun) {
  expect_lines({
      {"iterations: 100", "iterations: 100\n  skip: [7]",
       "bad.yaml:14:3: train.skip: expected a first and a last iteration, such as 101-200"},
      {"iterations: 100", "iterations: 100\n  skip: 9-5",
       "bad.yaml:14:3: train.skip = 9-5: 9-5 ends before it begins (try 5-9)"},
      {"iterations: 100", "iterations: 100\n  skip: 0-5",
       "bad.yaml:14:3: train.skip = 0-5: must be from 1 to 1000000000000"},
      {"iterations: 100", "iterations: 100\n  skip: 5-x",
       "bad.yaml:14:3: train.skip = 5-x: '5-x' is no range of iterations, such as 101-200"},
      {"iterations: 100", "iterations: 100\n  skip: [5-6, 101-110]",
       "bad.yaml:14:3: train.skip = 101-110 begins after the last iteration, 100; leave it out"},
  });
}

TEST(DeckChecks, DataAndTokenizerMustFit) {
  expect_lines({
      {"type: sentencepiece, model: m", "type: gpt2, vocab: v.json",
       "bad.yaml:11:15: data.tokenizer.type = gpt2 needs 'data.tokenizer.merges'; a vocabulary of "
       "whole words, without merges, belongs to type 'whitespace'"},
      {"type: sentencepiece, model: m", "type: bytes, model: m",
       "bad.yaml:11:28: data.tokenizer.type = bytes has no use for 'data.tokenizer.model'"},
      {"type: sentencepiece, model: m", "type: wordpiece, vocab: v.txt",
       "bad.yaml:11:15: data.tokenizer.type = wordpiece needs 'data.tokenizer.lowercase'"},
      {"type: sentencepiece, model: m", "type: bytes, lowercase: true",
       "bad.yaml:11:28: data.tokenizer.type = bytes has no use for 'data.tokenizer.lowercase'"},
      {"  tokenizer: {type: sentencepiece, model: m}\n", "",
       "bad.yaml:9:1: missing key 'data.tokenizer.type': give it, or the size of the vocabulary in "
       "'model.vocab'"},
      {"data:\n", "evaluate: {every: 10}\ndata:\n  split: 1\n",
       "bad.yaml:9:12: evaluate.every = 10 iterations has nothing to evaluate: data.split = 1 has "
       "no validation part (try 969,30,1, or give data.valid)"},
      {"data:\n", "evaluate: {at_end: true}\ndata:\n  split: 1\n",
       "bad.yaml:9:12: evaluate.at_end = true has nothing to evaluate: data.split = 1 has no "
       "validation or test part (try 969,30,1, or give data.valid or data.test)"},
  });
  EXPECT_EQ(errors_of(kSmallDeck, {"data.split=1,0,1", "evaluate.at_end=true"}), "");
  EXPECT_EQ(
      errors_of(kSmallDeck, {"data.tokenizer={type: wordpiece, vocab: v.txt, lowercase: false}",
                             "data.tokenizer.model="}),
      "");
  EXPECT_EQ(errors_of(kSmallDeck, {"data.split=1", "data.test=t", "evaluate.at_end=true"}), "");
}

TEST(DeckChecks, WsdMustFit) {
  EXPECT_EQ(errors_of(kSmallDeck, {"schedule.type=wsd"}), "");
  EXPECT_EQ(errors_of(kSmallDeck, {"schedule.type=wsd", "schedule.wsd.decay=20 iterations",
                                   "schedule.wsd.shape=minus-sqrt", "schedule.warmup=80"}),
            "");
  // 24 samples: 4.800000000000001 and 19.200000000000003; in iterations of 50 samples, half of one.
  EXPECT_EQ(
      errors_of(kSmallDeck, {"schedule.type=wsd", "schedule.warmup=0.2", "schedule.wsd.decay=0.8"}),
      "");
  EXPECT_EQ(errors_of(kSmallDeck, {"schedule.type=wsd", "schedule.dialect=v1",
                                   "schedule.warmup=0.005", "schedule.wsd.decay=0.995"}),
            "");
  const auto expect_error = [](const std::vector<std::string>& overrides, const std::string& text) {
    const std::string found = errors_of(kSmallDeck, overrides);
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  expect_error({"schedule.type=wsd", "schedule.warmup=0.05", "schedule.wsd.decay=0.951"},
               "does not fit between schedule.warmup = ");
  expect_error({"schedule.wsd.shape=cosine"},
               "'schedule.wsd.shape' needs schedule.type = wsd, but it is cosine; leave it out");
  expect_error({"schedule.type=wsd", "schedule.warmup=0.5", "schedule.wsd.decay=0.6"},
               "does not fit between schedule.warmup = ");
}

TEST(DeckChecks, RanksMustFitTheLayout) {
  const auto error_of = [](std::int64_t ranks, const std::vector<std::string>& overrides) {
    Deck deck = small_deck(overrides);
    try {
      resolve_world_size(deck, ranks);
    } catch (const DeckError& error) {
      EXPECT_EQ(error.code(), ExitCode::deck);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error_of(12, {"parallel.tensor=2", "parallel.pipeline=4", "parallel.data=2"}),
            "parallel: tensor * pipeline * data = 2 * 4 * 2 = 16, but 12 ranks were started (try "
            "16 ranks)" +
                kOneError);
  EXPECT_EQ(error_of(8, {"parallel.tensor=2", "parallel.data=2"}),
            "parallel: tensor * pipeline * data = 2 * 1 * 2 = 4, but 8 ranks were started (try "
            "data: 4, or 4 ranks)" +
                kOneError);
  EXPECT_EQ(error_of(12, {"parallel.tensor=2", "parallel.pipeline=4"}),
            "parallel: tensor * pipeline = 2 * 4 = 8 does not divide the 12 ranks that were "
            "started (try 8 or 16 ranks)" +
                kOneError);
  EXPECT_EQ(error_of(2, {"parallel.tensor=2", "parallel.pipeline=4"}),
            "parallel: tensor * pipeline = 2 * 4 = 8 does not divide the 2 ranks that were "
            "started (try 8 ranks)" +
                kOneError);
  EXPECT_EQ(error_of(6, {"parallel.tensor=2"}),
            "batch.global = 16 is not a multiple of batch.micro * parallel.data = 2 * 3 = 6 (try "
            "12 or 18)" +
                kOneError);
}

}  // namespace
}  // namespace trireme::deck
