// Every error of a deck by its text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decks.hpp"

namespace trireme::deck {
namespace {

const std::string kOneError =
    "\n1 error; nothing was started. 'trireme-pretrain --help deck' lists every key.";

// A change to the small deck and the one line that it leads to.
struct Case {
  std::string from;
  std::string to;
  std::string line;
};

void expect_lines(const std::vector<Case>& cases) {
  for (const auto& [from, to, line] : cases) {
    EXPECT_EQ(errors_of(changed(from, to)), line + kOneError) << "after writing " << to;
  }
}

TEST(DeckErrors, KeysThatDoNotExist) {
  expect_lines({
      {"  peak: 3e-4\n", "  peak: 3e-4\noptimizer:\n  weight_decy: 0.1\n",
       "bad.yaml:10:3: unknown key 'optimizer.weight_decy' — did you mean 'weight_decay'?"},
      {"  peak: 3e-4\n", "  peak: 3e-4\n  tensor: 2\n",
       "bad.yaml:9:3: unknown key 'schedule.tensor' — did you mean 'parallel.tensor'?"},
      {"train:\n  it", "optimiser: {beta1: 0.9}\ntrain:\n  it",
       "bad.yaml:12:1: unknown key 'optimiser' — did you mean 'optimizer'?"},
      {"train:\n  it", "frobnicate: 3\ntrain:\n  it", "bad.yaml:12:1: unknown key 'frobnicate'"},
      {"batch:", "model.dropout.attention: 0\nbatch:",
       "bad.yaml:6:1: write 'model.dropout.attention' as 'dropout.attention' inside the section "
       "'model:'"},
      {"batch:", "[a]: 0\nbatch:", "bad.yaml:6:1: a key must be a word, found a list"},
  });
}

TEST(DeckErrors, RepeatedKeys) {
  expect_lines({
      {"  heads: 8\n", "  heads: 8\n  heads: 4\n",
       "bad.yaml:5:3: repeated key 'model.heads' (first in line 4)"},
      {"  hidden: 64\n", "  hidden: 64\nrun: {}\nmodel:\n",
       "bad.yaml:5:1: repeated key 'model' (first in line 1)"},
  });
}

TEST(DeckErrors, Types) {
  const std::string kNoDatasets =
      "bad.yaml:10:3: data.train: expected datasets, [a, b, ...], or each with its weight, [0.3, "
      "a, 0.7, b, ...] (quote the name of a dataset that is a number)";
  expect_lines({
      {"layers: 4", "layers: four", "bad.yaml:2:3: model.layers = four: expected a whole number"},
      {"layers: 4", "layers: \"4\"",
       "bad.yaml:2:3: model.layers = \"4\": expected a whole number; take away the quotes"},
      {"layers: 4", "layers: 4.5", "bad.yaml:2:3: model.layers = 4.5: expected a whole number"},
      {"layers: 4", "layers: 0x4", "bad.yaml:2:3: model.layers = 0x4: expected a whole number"},
      {"layers: 4", "layers: 4_", "bad.yaml:2:3: model.layers = 4_: expected a whole number"},
      {"layers: 4", "layers: 010",
       "bad.yaml:2:3: model.layers = 010: a number does not start with 0 (YAML would read it as "
       "octal)"},
      {"layers: 4", "layers: 9223372036854775808",
       "bad.yaml:2:3: model.layers = 9223372036854775808: too large for a 64-bit number"},
      {"layers: 4", "layers: 1e99999",
       "bad.yaml:2:3: model.layers = 1e99999: the exponent is out of range"},
      {"layers: 4", "layers: [4]",
       "bad.yaml:2:3: model.layers: expected a whole number, found a list"},
      {"layers: 4", "layers: {a: 4}",
       "bad.yaml:2:3: model.layers: expected a whole number, found a section"},
      {"layers: 4",
       "layers:", "bad.yaml:2:3: model.layers has no value; give one or leave the key out"},
      {"layers: 4", "layers: 4\n  dropout: 0.1",
       "bad.yaml:3:3: 'model.dropout' is a section with the keys attention, hidden; found 0.1"},
      {"peak: 3e-4", "peak: high", "bad.yaml:8:3: schedule.peak = high: expected a number"},
      {"peak: 3e-4", "peak: .nan", "bad.yaml:8:3: schedule.peak = .nan: expected a number"},
      {"peak: 3e-4", "peak: .inf", "bad.yaml:8:3: schedule.peak = .inf: expected a number"},
      {"peak: 3e-4", "peak: 1e999",
       "bad.yaml:8:3: schedule.peak = 1e999: out of the range of floating-point numbers"},
      {"corpus_text_document", "[]", kNoDatasets},
      {"corpus_text_document", "[0.3, a, b]", kNoDatasets},
      {"corpus_text_document", "[a, 0.3, b, 0.7]", kNoDatasets},
      {"corpus_text_document", "[0.3, a, 0.7, [b]]",
       "bad.yaml:10:3: data.train: expected text, found a list"},
      {"corpus_text_document", "[0.3, a, 0, b]",
       "bad.yaml:10:3: data.train: the weight 0 of 'b' must be above 0"},
      {"corpus_text_document", "{a: b}",
       "bad.yaml:10:3: data.train: expected text, found a section"},
      {"corpus_text_document", "[a, b]\n  index_files: x_train_indexmap_1ns",
       "bad.yaml:11:3: data.index_files gives the indices of one dataset, but data.train mixes 2; "
       "leave data.index_files out"},
      {"  train: c", "  corpora: wiki\n  train: c",
       "bad.yaml:10:3: data.corpora = wiki: expected names of datasets, {name: prefix}, found "
       "wiki"},
      {"  train: c", "  corpora: {wiki: a, wiki: b}\n  train: c",
       "bad.yaml:10:3: data.corpora: repeated name 'wiki'"},
      {"  train: c", "  eod_loss: yes\n  train: c",
       "bad.yaml:10:3: data.eod_loss = yes: expected true or false"},
      {"batch:", "run: {name: \"\"}\nbatch:", "bad.yaml:6:7: run.name = \"\": must not be empty"},
      {"batch:", "run: {name: \"a\\nb\"}\nbatch:",
       "bad.yaml:6:7: run.name = \"a b\": must be one line without control characters"},
  });
}

TEST(DeckErrors, RangesAndAllowedValues) {
  expect_lines({
      {"layers: 4", "layers: 0", "bad.yaml:2:3: model.layers = 0: must be from 1 to 10000"},
      {"layers: 4", "layers: -1", "bad.yaml:2:3: model.layers = -1: must be from 1 to 10000"},
      {"layers: 4", "layers: 4\n  dropout: {attention: 1}",
       "bad.yaml:3:13: model.dropout.attention = 1: must be from 0 to below 1"},
      {"peak: 3e-4", "peak: 0", "bad.yaml:8:3: schedule.peak = 0: must be above 0"},
      {"peak: 3e-4", "peak: 3e-4\n  minimum: -1",
       "bad.yaml:9:3: schedule.minimum = -1: must be at least 0"},
      {"peak: 3e-4", "peak: 3e-4\n  type: cosin",
       "bad.yaml:9:3: schedule.type = cosin: allowed are cosine, linear, constant, exponential, "
       "inverse-square-root, lr-range-test — did you mean 'cosine'?"},
      {"peak: 3e-4", "peak: 3e-4\n  dialect: deepspeed",
       "bad.yaml:9:3: schedule.dialect = deepspeed: allowed are megatron, v1"},
      {"batch:", "log: {tensorboard: {dialect: bigscence}}\nbatch:",
       "bad.yaml:6:21: log.tensorboard.dialect = bigscence: allowed are trireme, megatron, "
       "bigscience — did you mean 'bigscience'?"},
      {"batch:", "log: {timers: minmax}\nbatch:",
       "bad.yaml:6:7: log.timers = minmax: expected true or false"},
      {"batch:", "log: {norms: 2}\nbatch:", "bad.yaml:6:7: log.norms = 2: expected true or false"},
      {"peak: 3e-4", "peak: 3e-4\n  warmup: 5 minutes",
       "bad.yaml:9:3: schedule.warmup = 5 minutes: expected a number and its unit (iterations, "
       "samples, or a fraction below 1)"},
      {"peak: 3e-4", "peak: 3e-4\n  warmup: 1.5",
       "bad.yaml:9:3: schedule.warmup = 1.5: expected a whole number"},
      {"peak: 3e-4", "peak: 3e-4\n  decay: 0.5",
       "bad.yaml:9:3: schedule.decay = 0.5: must be from 1 to 1000000000000"},
      {"iterations: 100", "iterations: 100\n  exit_duration: 90",
       "bad.yaml:14:3: train.exit_duration = 90: expected a number and its unit (seconds, minutes, "
       "hours)"},
      {"iterations: 100", "iterations: 100\n  exit_interval: 5 parsecs",
       "bad.yaml:14:3: train.exit_interval = 5 parsecs: expected a number and its unit "
       "(iterations, samples)"},
      {"data:\n", "data:\n  split: 1,2,-3\n",
       "bad.yaml:10:3: data.split = 1,2,-3: must be at least 0"},
      {"data:\n", "data:\n  split: [1, 2, 3, 4]\n",
       "bad.yaml:10:3: data.split = 1,2,3,4: give at most three weights, for train, valid and "
       "test, that do not sum to 0 (try 969,30,1)"},
      {"batch:", "parallel: {partition: 1-x}\nbatch:",
       "bad.yaml:6:12: parallel.partition = 1-x: expected a whole number"},
  });
}

TEST(DeckErrors, WhatNeedsAGpu) {
  expect_lines({
      {"batch:", "comm: {nccl_debug: INFO}\nbatch:",
       "bad.yaml:6:8: comm.nccl_debug = INFO needs run.device = cuda; leave it out"},
  });
}

TEST(DeckErrors, NotBuiltYet) {
  expect_lines({
      {"batch:", "sweep: {optimizer.beta1: [0.9, 0.95]}\nbatch:",
       "bad.yaml:6:1: 'sweep' makes many runs of this deck: start them with 'trireme-sweep "
       "bad.yaml', "
       "or train the deck alone with the override 'sweep='"},
      {"layers: 4", "layers: 4\n  family: bert",
       "bad.yaml:3:3: 'model.family: bert' is not built yet; leave it out or write 'gpt'"},
      {"sentencepiece, model", "wordpiece, vocab",
       "bad.yaml:11:15: 'data.tokenizer.type: wordpiece' is not built yet; leave it out or write "
       "'gpt2', 'sentencepiece', 'whitespace' or 'bytes'"},
  });
}

TEST(DeckErrors, ModelAndLayoutMustFit) {
  expect_lines({
      {"hidden: 64", "hidden: 66",
       "bad.yaml:4:3: model.heads = 8 does not divide model.hidden = 66 (try 2, 3, 6, 11, 22 or "
       "33)"},
      {"hidden: 64", "hidden: 64\n  positions: 16",
       "bad.yaml:4:3: model.positions = 16 is less than model.sequence = 32 (try 32)"},
      {"batch:", "parallel:\n  tensor: 5\nbatch:",
       "bad.yaml:7:3: parallel.tensor = 5 does not divide model.heads = 8 (try 1, 2, 4 or 8)"},
      {"  sequence: 32\n", "  sequence: 32\n  ffn: 100\nparallel: {tensor: 8}\n",
       "bad.yaml:7:12: parallel.tensor = 8 does not divide model.ffn = 100 (try 1, 2 or 4)"},
      {"  sequence: 32\n", "  sequence: 30\nparallel: {tensor: 4, sequence: true}\n",
       "bad.yaml:6:12: parallel.tensor = 4 does not divide model.sequence = 30, which "
       "parallel.sequence cuts (try 1 or 2, or parallel.sequence: false)"},
      {"batch:", "parallel:\n  pipeline: 3\nbatch:",
       "bad.yaml:7:3: parallel.pipeline = 3 does not divide model.layers = 4 (try 1, 2 or 4, or "
       "parallel.partition: 2-1-1)"},
      {"batch:", "parallel:\n  pipeline: 2\n  partition: 0-2-2-0\nbatch:",
       "bad.yaml:8:3: parallel.partition = 0-2-2-0 has 4 parts, but parallel.pipeline = 2 (try "
       "2-2)"},
      {"batch:", "parallel:\n  pipeline: 4\n  partition: [0, 3, 2, 0]\nbatch:",
       "bad.yaml:8:3: parallel.partition = 0-3-2-0 has 5 layers, but model.layers = 4 (try "
       "1-1-1-1)"},
  });
}

TEST(DeckErrors, PipelineScheduleMustFit) {
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

TEST(DeckErrors, BatchScheduleAndLengthMustFit) {
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
      {"batch:", "optimizer: {type: sgd, beta2: 0.95}\nbatch:",
       "bad.yaml:6:24: optimizer.type = sgd has no use for 'optimizer.beta2'; leave it out"},
      {"batch:", "precision: {loss_scale: {window: 500}}\nbatch:",
       "bad.yaml:6:26: 'precision.loss_scale.window' needs precision.compute = fp16, but it is "
       "fp32; "
       "leave it out"},
      {"batch:", "precision: {compute: fp16, loss_scale: {value: 1024, minimum: 2}}\nbatch:",
       "bad.yaml:6:54: 'precision.loss_scale.minimum' has no use beside precision.loss_scale.value "
       "= "
       "1024; leave one of them out"},
      {"batch:", "precision: {compute: fp16, loss_scale: {initial: 4, minimum: 8}}\nbatch:",
       "bad.yaml:6:53: precision.loss_scale.minimum = 8 is above precision.loss_scale.initial = 4 "
       "(try 1)"},
      {"batch:", "precision: {compute: fp16, loss_scale: {value: 0}}\nbatch:",
       "bad.yaml:6:41: precision.loss_scale.value = 0: must be above 0"},
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
       "bad.yaml:6:32: recompute.partition = true has no use beside parallel.sequence = true, with "
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
  });
}

// The small deck with a ramp-up, on train.samples.
std::string ramped(const std::string& rampup, const std::string& rest = "") {
  std::string text = changed("global: 16", "global: 16, rampup: {" + rampup + "}" + rest);
  return text.replace(text.find("iterations: 100"), 15, "samples: 10_000");
}

TEST(DeckErrors, ARampUpMustLeadToTheGlobalBatch) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"start: 2, step: 2",
       "6:31: missing key 'batch.rampup.samples': Samples until the global "
       "batch is batch.global, in equal parts."},
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
    EXPECT_EQ(errors_of(ramped(rampup)), "bad.yaml:" + line + kOneError) << rampup;
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

TEST(DeckErrors, ARampUpCountsSamples) {
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

TEST(DeckErrors, SkippedDataIsThatOfTheRun) {
  expect_lines({
      {"iterations: 100", "iterations: 100\n  skip: [7]",
       "bad.yaml:14:3: train.skip: expected a first and a last iteration, such as 101-200"},
      {"iterations: 100", "iterations: 100\n  skip: 9-5",
       "bad.yaml:14:3: train.skip = 9-5: 9-5 ends before it begins (try 5-9)"},
      {"iterations: 100", "iterations: 100\n  skip: 0-5",
       "bad.yaml:14:3: train.skip = 0-5: must be from 1 to 1000000000000"},
      {"iterations: 100", "iterations: 100\n  skip: 5-x",
       "bad.yaml:14:3: train.skip = 5-x: expected a whole number"},
      {"iterations: 100", "iterations: 100\n  skip: [5-6, 101-110]",
       "bad.yaml:14:3: train.skip = 101-110 begins after the last iteration, 100; leave it out"},
  });
}

TEST(DeckErrors, DataAndTokenizerMustFit) {
  expect_lines({
      {"type: sentencepiece, model: m", "type: gpt2, vocab: v.json",
       "bad.yaml:11:15: data.tokenizer.type = gpt2 needs 'data.tokenizer.merges'"},
      {"type: sentencepiece, model: m", "type: bytes, model: m",
       "bad.yaml:11:28: data.tokenizer.type = bytes has no use for 'data.tokenizer.model'"},
      {"  tokenizer: {type: sentencepiece, model: m}\n", "",
       "bad.yaml:9:1: missing key 'data.tokenizer.type': give it, or the size of the vocabulary in "
       "'model.vocab'"},
      {"data:\n", "evaluate: {every: 10}\ndata:\n  split: 1\n",
       "bad.yaml:9:12: evaluate.every = 10 iterations has nothing to evaluate: data.split = 1 has "
       "no validation part (try 969,30,1, or give data.valid)"},
      {"data:\n", "evaluate: {at_end: true}\ndata:\n  split: 1,0,1\n",
       "bad.yaml:9:12: evaluate.at_end = true has nothing to evaluate: data.split = 1,0,1 has no "
       "validation part (try 969,30,1, or give data.valid)"},
  });
}

TEST(DeckErrors, MissingKeys) {
  expect_lines({
      {"  layers: 4\n", "", "bad.yaml:1:1: missing key 'model.layers': Transformer layers."},
      {"  iterations: 100\n", "  kill_switch: stop\n",
       "bad.yaml:12:1: missing key 'train.iterations' or 'train.samples': how long to train"},
      {"schedule:\n  peak: 3e-4\n", "",
       "bad.yaml: missing key 'schedule.peak': Largest learning rate."},
      {"  train: corpus_text_document\n", "",
       "bad.yaml:9:1: missing key 'data.train': Indexed dataset: the path of its .bin and .idx "
       "without the ending; [0.3, a, 0.7, b] mixes two."},
  });
  const std::string without_data = changed("  train: corpus_text_document\n", "");
  EXPECT_EQ(errors_of(without_data, {}, {.need_data = false}), "");
  EXPECT_EQ(errors_of("", {}, {.need_data = false}).substr(0, 65),
            "bad.yaml: missing key 'model.layers': Transformer layers.\nbad.yam");
}

TEST(DeckErrors, WhatYamlAllowsAndADeckDoesNot) {
  expect_lines({
      {"batch:", "run: {name: !!str x}\nbatch:",
       "bad.yaml:6:13: a tag ('!name') has no place in a deck; leave it out"},
      {"micro: 2", "micro: &two 2",
       "bad.yaml:6:16: an anchor ('&name') has no place in a deck; leave it out"},
      {"batch:", "run: {<<: {seed: 1}}\nbatch:",
       "bad.yaml:6:7: merge keys ('<<') have no place in a deck; write the keys out"},
      {"  iterations: 100\n", "  iterations: 100\n---\na: 1\n",
       "bad.yaml:15:1: a second YAML document; a deck is only one"},
      {"corpus", "corpus\xff", "bad.yaml:10:16: byte 0xff is not UTF-8"},
      {"corpus", "corpus\x04", "bad.yaml:10:16: control character 0x04"},
      {"global: 16}", "global: 16", "bad.yaml:7:9: not valid YAML: end of map flow not found"},
      {"  layers", "\tlayers",
       "bad.yaml:2:8: not valid YAML: illegal map value (line 2 is indented with a tab; use "
       "spaces)"},
  });
  EXPECT_EQ(errors_of(changed("global: 16", "global: &a 16, micro: *a")),
            "bad.yaml:6:27: an anchor ('&name') has no place in a deck; leave it out\n"
            "bad.yaml:6:34: repeated key 'batch.micro' (first in line 6)\n"
            "bad.yaml:6:41: an alias ('*name') has no place in a deck; write the value out\n"
            "3 errors; nothing was started. 'trireme-pretrain --help deck' lists every key.");
  EXPECT_EQ(errors_of("- a\n- b\n"),
            "bad.yaml:1:1: a deck is made of sections such as 'model:', found a list" + kOneError);
}

TEST(DeckErrors, HugeAndDeepDocuments) {
  for (const std::string piece : {"[", "{a: ", "- ", "? ", "a: [", "[a: "}) {
    std::string deep;
    for (int level = 0; level < 50'000; ++level) deep += piece;
    EXPECT_NE(errors_of(deep).find(": nested deeper than 64 levels\n1 error;"), std::string::npos)
        << piece << errors_of(deep);
  }
  EXPECT_EQ(errors_of(std::string((1 << 20) + 1, ' ')),
            "bad.yaml: 1048577 bytes are too many for a deck (at most 1 MiB)" + kOneError);
}

TEST(DeckErrors, AreAllReportedInTheOrderOfTheFile) {
  const std::string text =
      "train: {iterations: 10}\n"
      "model:\n"
      "  layers: none\n"
      "  hidden: 64\n"
      "  heads: 8\n"
      "  sequence: 0\n"
      "  vocab: 100\n"
      "batch: {micro: 2, global: 15, size: 3}\n";
  EXPECT_EQ(errors_of(text, {"log.every=often"}),
            "bad.yaml:3:3: model.layers = none: expected a whole number\n"
            "bad.yaml:6:3: model.sequence = 0: must be from 1 to 16777216\n"
            "bad.yaml:8:19: batch.global = 15 is not a multiple of batch.micro = 2 (try 14 or 16)\n"
            "bad.yaml:8:31: unknown key 'batch.size'\n"
            "bad.yaml: missing key 'schedule.peak': Largest learning rate.\n"
            "bad.yaml: missing key 'data.train': Indexed dataset: the path of its .bin and .idx "
            "without the ending; [0.3, a, 0.7, b] mixes two.\n"
            "--set log.every=often: log.every = often: expected a whole number\n"
            "7 errors; nothing was started. 'trireme-pretrain --help deck' lists every key.");
}

TEST(DeckErrors, OverridesAreCheckedLikeTheFile) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"=3", "an override is written key=value, such as model.layers=12"},
      {"model.layers", "an override is written key=value, such as model.layers=12"},
      {"model.layres=3", "unknown key 'model.layres' — did you mean 'layers'?"},
      {"model.layers=x", "model.layers = x: expected a whole number"},
      {"model={layers: 2, layers: 3}", "repeated key 'model.layers'"},
      {"model.dropout=3", "'model.dropout' is a section with the keys attention, hidden; found 3"},
      {"parallel.tensor=3",
       "parallel.tensor = 3 does not divide model.heads = 8 (try 1, 2, 4 or 8)"},
      {"batch.micro=5", "batch.global = 16 is not a multiple of batch.micro = 5 (try 15 or 20)"},
      {"parallel.zero=4", "parallel.zero = 4: must be from 0 to 3"},
      {"run.output=[", "not valid YAML: end of sequence flow not found"},
  };
  for (const auto& [override_text, message] : cases) {
    EXPECT_EQ(errors_of(kSmallDeck, {override_text}),
              "--set " + override_text + ": " + message + kOneError);
  }
}

TEST(DeckErrors, RanksMustFitTheLayout) {
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
