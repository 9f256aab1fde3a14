// The errors of keys and of documents, by their text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "deck/keys/schema.hpp"
#include "decks.hpp"

namespace trireme::deck {
namespace {

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
      {"batch:", "'': {run: {seed: 1}}\nbatch:", "bad.yaml:6:1: a key must be a word, found \"\""},
      {"batch:", "\u200blog: {every: 2}\nbatch:",
       "bad.yaml:6:1: unknown key '\u200blog' — it has the character U+200B; keys are ASCII"},
      {"batch:", "run: {seed:1}\nbatch:",
       "bad.yaml:6:7: unknown key 'run.seed:1' — write a space after the colon"},
  });
}

TEST(DeckErrors, NamesOfOtherProgramsAndSections) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"modle.layers=5", " — did you mean 'model.layers'?"},
      {"modle.layres=5", " — did you mean 'model.layers'?"},
      {"layers=5", " — did you mean 'model.layers' or 'recompute.layers'?"},
      {"lr=1e-3", " — did you mean 'schedule.peak'?"},
      {"optimizer.lr=1e-3", " — did you mean 'schedule.peak'?"},
      {"learning_rate=1e-3", " — did you mean 'schedule.peak'?"},
      {"optimizer.learning-rate=1e-3", " — did you mean 'schedule.peak'?"},
      {"schedule.warmup_steps=9", " — did you mean 'schedule.warmup'?"},
      {"schedule.range_test.steps=9", " — did you mean 'step'?"},
      {"gradient_accumulation_steps=4",
       " — did you mean 'batch.global'? (batch.global = batch.micro * data ranks * accumulation "
       "steps)"},
      {"log.wandb=true",
       " — not supported: metrics.jsonl and tensorboard/ in the run folder hold all figures"},
  };
  for (const auto& [text, hint] : cases) {
    EXPECT_EQ(errors_of(kSmallDeck, {text}), "--set " + text + ": unknown key '" +
                                                 text.substr(0, text.find('=')) + "'" + hint +
                                                 kOneError);
  }
}

TEST(DeckErrors, ListsInBracesNeedQuotes) {
  expect_lines({{"batch:", "run: {seed: 1, 30}\nbatch:",
                 "bad.yaml:6:16: a list inside {} needs quotes: seed: \"1,30\""}});
  const std::string text = "data={train: c, split: 969,30,1}";
  EXPECT_EQ(errors_of(kSmallDeck, {text}),
            "--set " + text + ": a list inside {} needs quotes: split: \"969,30,1\"" + kOneError);
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
  ::setenv("HOME", "/home/me", /*overwrite=*/1);
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
      {"layers: 4", "layers: 4k",
       "bad.yaml:2:3: model.layers = 4k: expected a whole number written out: a suffix may mean "
       "1000 or 1024"},
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
       "bad.yaml:10:3: data.train: expected a dataset, or datasets with their weights, [0.3, a, "
       "0.7, b], found a section"},
      {"corpus_text_document", "0.3 a 0.7 b",
       "bad.yaml:10:3: data.train = 0.3 a 0.7 b: a blend is a list: [0.3, a, 0.7, b]"},
      {"corpus_text_document", "~/a",
       "bad.yaml:10:3: data.train = ~/a: shells alone know '~': write /home/me/a"},
      {"iterations: 100", "iterations: 5 epochs",
       "bad.yaml:13:3: train.iterations = 5 epochs: expected a whole number alone, without "
       "'epochs'"},
      {"iterations: 100", "iterations: 100\n  exit_duration: 1e30 hours",
       "bad.yaml:14:3: train.exit_duration = 1e30 hours: must be at most 1000000 hours"},
      {"iterations: 100", "iterations: 100\n  skip: [a-b]",
       "bad.yaml:14:3: train.skip: 'a-b' is no range of iterations, such as 101-200"},
      {"batch:", "checkpoint: {every: 0}\nbatch:",
       "bad.yaml:6:14: checkpoint.every = 0: must be from 1 to 1000000000000; leave the key out "
       "for "
       "none"},
      {"batch:", "checkpoint: {keep: 0}\nbatch:",
       "bad.yaml:6:14: checkpoint.keep = 0: must be at least 1; the key's default is 'all'"},
      {"batch:", "precision: {loss_scale: dynamic}\nbatch:",
       "bad.yaml:6:13: 'precision.loss_scale' is a section with the keys value, dialect, initial, "
       "window, hysteresis, minimum; found dynamic; write {value: dynamic}"},
      {"corpus_text_document", "[a, b]\n  index_files: x_train_indexmap_1ns",
       "bad.yaml:11:3: data.index_files gives the indices of one dataset, but data.train mixes 2; "
       "leave data.index_files out"},
      {"  train: c", "  corpora: wiki\n  train: c",
       "bad.yaml:10:3: data.corpora = wiki: expected names of datasets, {name: prefix}, found "
       "wiki"},
      {"  train: c", "  corpora: {wiki: a, wiki: b}\n  train: c",
       "bad.yaml:10:3: data.corpora: repeated name 'wiki'"},
      {"batch:", "evaluate: {tasks: [{name: lambda, file: x}]}\nbatch:",
       "bad.yaml:6:12: evaluate.tasks: allowed are perplexity, wikitext, lambada, strict-lambada, "
       "hellaswag, piqa, arc, winogrande, blimp, choices, targets — did you mean 'lambada'?"},
      {"batch:", "evaluate: {tasks: [{name: piqa, files: x}]}\nbatch:",
       "bad.yaml:6:12: evaluate.tasks: unknown key 'files' of a task, which has name, file and "
       "every"},
      {"batch:", "evaluate: {tasks: {name: piqa}}\nbatch:",
       "bad.yaml:6:12: evaluate.tasks: a task needs a name and a file: {name: lambada, file: FILE, "
       "every: 1000}"},
      {"  train: c", "  eod_loss: yes\n  train: c",
       "bad.yaml:10:3: data.eod_loss = yes: expected true or false — did you mean 'true'?"},
      {"batch:", "log: {timers: Off}\nbatch:",
       "bad.yaml:6:7: log.timers = Off: expected true or false — did you mean 'false'?"},
      {"  peak: 3e-4", "  peak: 0,003",
       "bad.yaml:8:3: schedule.peak = 0,003: expected a number, with a decimal point: 0.003"},
      {"batch:", "run: {name: \"\"}\nbatch:", "bad.yaml:6:7: run.name = \"\": must not be empty"},
      {"batch:", "run: {name: \"a\\nb\"}\nbatch:",
       "bad.yaml:6:7: run.name = \"a b\": must be one line without control characters"},
      {"batch:", "run: {output: \"a\\x7fb\"}\nbatch:",
       "bad.yaml:6:7: run.output = \"a b\": must be one line without control characters"},
  });
}

TEST(DeckErrors, FileNamesThatCannotNameARun) {
  for (const char* name : {"runs/caf\xe9.yaml", "a\nb.yaml"}) {
    try {
      parse(kSmallDeck, name);
      FAIL() << name;
    } catch (const DeckError& error) {
      EXPECT_EQ(
          error.what(),
          std::string(name) +
              ": run.name is the deck's file name where it is not given, and that is not "
              "UTF-8 without control characters; give run.name\n"
              "1 error; nothing was started. 'trireme-pretrain --help deck' lists every key.");
    }
    EXPECT_EQ(parse(kSmallDeck, name, {"run.name=x"}).run.name, "x");
  }
  EXPECT_EQ(parse(kSmallDeck, "caf\u00e9.yaml").run.name, "caf\u00e9");
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
       "inverse-square-root, lr-range-test, wsd — did you mean 'cosine'?"},
      {"layers: 4", "layers: 4\n  family: mamba",
       "bad.yaml:3:3: model.family = mamba: allowed are gpt, bert, llama"},
      {"batch:", "precision: {compute: bfloat16}\nbatch:",
       "bad.yaml:6:13: precision.compute = bfloat16: allowed are fp32, bf16, fp16 — did you mean "
       "'bf16'?"},
      {"peak: 3e-4", "peak: 3e-4\n  warmup: 105%",
       "bad.yaml:9:3: schedule.warmup = 105%: expected a number and its unit (iterations, samples, "
       "or a fraction below 1)"},
      {"batch:", "comm: {timeout: 1:75:00}\nbatch:",
       "bad.yaml:6:8: comm.timeout = 1:75:00: expected hours, minutes and seconds, such as "
       "1:30:00"},
      {"peak: 3e-4", "peak: 3e-4\n  dialect: deepspeed",
       "bad.yaml:9:3: schedule.dialect = deepspeed: allowed are megatron, v1 "
       "('deepspeed' is a value of precision.loss_scale.dialect)"},
      {"batch:", "log: {tensorboard: {dialect: bigscence}}\nbatch:",
       "bad.yaml:6:21: log.tensorboard.dialect = bigscence: allowed are trireme, megatron, "
       "bigscience — did you mean 'bigscience'?"},
      {"batch:", "log: {timers: minmax}\nbatch:",
       "bad.yaml:6:7: log.timers = minmax: expected true or false"},
      {"batch:", "log: {norms: 2}\nbatch:",
       "bad.yaml:6:7: log.norms = 2: allowed are false, true, layers"},
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
       "test, with a finite sum above 0 (try 969,30,1)"},
      {"batch:", "parallel: {partition: 1-x}\nbatch:",
       "bad.yaml:6:12: parallel.partition = 1-x: expected a whole number"},
  });
}

TEST(DeckErrors, WhatNeedsAGpu) {
  expect_lines({
      {"batch:", "comm: {nccl_debug: INFO}\nbatch:",
       "bad.yaml:6:8: comm.nccl_debug = INFO needs run.device = cuda; leave it out"},
      {"batch:", "run: {device: cuda}\ncomm: {nccl_debug: verbose}\nbatch:",
       "bad.yaml:7:8: comm.nccl_debug = verbose: allowed are VERSION, WARN, INFO, TRACE"},
  });
}

TEST(DeckErrors, NotBuiltYet) {
  expect_lines({
      {"batch:", "sweep: {optimizer.beta1: [0.9, 0.95]}\nbatch:",
       "bad.yaml:6:1: 'sweep' makes many runs of this deck: start them with 'trireme-sweep "
       "bad.yaml', "
       "or train the deck alone with the override 'sweep='"},
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
       "bad.yaml:9:1: missing key 'data.train': Dataset: the path of its .bin and .idx "
       "without the ending; [0.3, a, 0.7, b] blends two."},
  });
  const std::string without_data = changed("  train: corpus_text_document\n", "");
  EXPECT_EQ(errors_of(without_data, {}, {.need_data = false}), "");
  EXPECT_EQ(errors_of("log:\n", {}, {.need_data = false}).substr(0, 65),
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
      {"corpus", "corpus\x04", "bad.yaml:10:16: control character 0x04: a deck is a text"},
      {"  iterations: 100\n",
       "  iterations: 100\nhooks:\n  stop: \"echo\ncheckpoint:\n  every: 1\n",
       "bad.yaml:17:11: not valid YAML: a quote is not closed"},
      {"global: 16}", "global: 16",
       "bad.yaml:7:9: not valid YAML: '{' is not closed by '}', or a quote not by another one"},
      {"  layers", "\tlayers",
       "bad.yaml:2:8: not valid YAML: line 2 is indented with a tab; use spaces"},
      {"  heads", "\u00a0 heads",
       "bad.yaml:5:11: not valid YAML: line 4 is indented with a no-break space; use spaces"},
      {"  layers", "   layers",
       "bad.yaml:3:3: not valid YAML: the indentation differs from that of the lines above"},
      {"corpus_text_document", "*corpus",
       "bad.yaml:10:10: not valid YAML: an alias ('*name') has no place in a deck; write the value "
       "out, or quote the text"},
      {"  layers: 4", "  layers:4",
       "bad.yaml:3:9: not valid YAML: a ':' that belongs to no key: is this line indented as its "
       "neighbours are, and has the key above its own ':'? (line 2 needs a space after 'layers:')"},
      {"train:\n", "log.every = 1: a\ntrain:\n",
       "bad.yaml:12:1: unknown key 'log.every = 1' — in a deck it is KEY: VALUE, inside the key's "
       "section"},
      {"train:\n", "log\uff1a {every: 1}\ntrain:\n",
       "bad.yaml:12:1: unknown key 'log\uff1a {every' — write the ASCII colon ':' and a space"},
  });
  EXPECT_EQ(errors_of(""),
            "bad.yaml: an empty deck; inputs/quickstart.yaml is one to start from" + kOneError);
  EXPECT_EQ(errors_of("\xff\xfem\0"),
            "bad.yaml:1:1: UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE" + kOneError);
  EXPECT_EQ(
      errors_of("log:\r  every: 1\r"),
      "bad.yaml:1:5: its lines end with CR alone; convert it: tr '\\r' '\\n' <FILE" + kOneError);
  EXPECT_EQ(errors_of(changed("global: 16", "global: &a 16, micro: *a")),
            "bad.yaml:6:27: an anchor ('&name') has no place in a deck; leave it out\n"
            "bad.yaml:6:34: repeated key 'batch.micro' (first in line 6)\n"
            "bad.yaml:6:41: an alias ('*name') has no place in a deck; write the value out\n"
            "3 errors; nothing was started. 'trireme-pretrain --help deck' lists every key.");
  EXPECT_EQ(errors_of("- a\n- b\n"),
            "bad.yaml:1:1: a deck is made of sections such as 'model:', found a list" + kOneError);
}

TEST(DeckErrors, ABadValueOfAnyKeyIsNamedWhateverElseIsChosen) {
  const std::vector<std::vector<std::string>> choices = {
      {},
      {"precision.compute=fp16"},
      {"optimizer.type=sgd"},
      {"recompute.granularity=full"},
      {"schedule.type=lr-range-test", "schedule.peak=", "schedule.minimum=1e-5"},
      {"train.iterations=", "train.samples=500", "batch.rampup={start: 4, step: 4, samples: 90}"},
      {"parallel={pipeline: 2, schedule: interleaved, interleave: 2}"},
  };
  for (std::vector<std::string> overrides : choices) {
    EXPECT_EQ(errors_of(kSmallDeck, overrides), "");
    overrides.emplace_back();
    for (const Key& key : keys()) {
      if (!key.has_member()) continue;
      overrides.back() = key.path + "=[[]]";
      const std::string text = errors_of(kSmallDeck, overrides);
      EXPECT_NE(text.find(": " + key.path), std::string::npos) << overrides[0] << "\n" << text;
    }
  }
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
            "bad.yaml:8:31: unknown key 'batch.size' — did you mean 'batch.micro'? (batch.global "
            "counts all data ranks)\n"
            "bad.yaml: missing key 'schedule.peak': Largest learning rate.\n"
            "bad.yaml: missing key 'data.train': Dataset: the path of its .bin and .idx "
            "without the ending; [0.3, a, 0.7, b] blends two.\n"
            "--set log.every=often: log.every = often: expected a whole number\n"
            "7 errors; nothing was started. 'trireme-pretrain --help deck' lists every key.");
}

TEST(DeckErrors, OverridesAreCheckedLikeTheFile) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"=3", "an override is written key=value, such as model.layers=12"},
      {"layers", "an override is written key=value, such as model.layers=12"},
      {"model.layers", "an override is written key=value: model.layers=VALUE"},
      {"model.layers:4", "an override is written key=value: model.layers=4"},
      {"model.layres=3", "unknown key 'model.layres' — did you mean 'layers'?"},
      {"model.layers=x", "model.layers = x: expected a whole number"},
      {"model={layers: 2, layers: 3}", "repeated key 'model.layers'"},
      {"model.dropout=3", "'model.dropout' is a section with the keys attention, hidden; found 3"},
      {"parallel.tensor=3",
       "parallel.tensor = 3 does not divide model.heads = 8 (try 1, 2, 4 or 8)"},
      {"batch.micro=5", "batch.global = 16 is not a multiple of batch.micro = 5 (try 15 or 20)"},
      {"parallel.zero=4", "parallel.zero = 4: must be from 0 to 3"},
      {"run.name=a #1",
       "YAML reads 'a', as a blank and '#' begin a comment and a newline is a blank: leave it "
       "out, "
       "or quote the text, for the shell as well: 'run.name=\"a #1\"'"},
      {"run.name=#1",
       "YAML reads 'nothing', as a blank and '#' begin a comment and a newline is a blank: "
       "leave "
       "it out, or quote the text, for the shell as well: 'run.name=\"#1\"'"},
      {"run.output=[", "not valid YAML: '[' is not closed by ']', or a quote not by another one"},
      {"data.tokenizer.type=huggingface",
       "data.tokenizer.type = huggingface: allowed are gpt2, bpe, sentencepiece, wordpiece, "
       "encdec, whitespace, bytes — did you mean 'bpe'?"},
  };
  for (const auto& [override_text, message] : cases) {
    EXPECT_EQ(errors_of(kSmallDeck, {override_text}),
              "--set " + override_text + ": " + message + kOneError);
  }
}

TEST(DeckErrors, OverridesLoseNoPartOfAText) {
  EXPECT_NE(errors_of(kSmallDeck, {"run.name=a\nb"}).find("YAML reads 'a b', as"),
            std::string::npos);
  for (const char* whole : {"run.name=a#1", "run.name=\"a #1\"", "run.name='a #1' # quoted",
                            "model.layers=4 \n", "data.split=[1, 0, 0] # a list"})
    EXPECT_EQ(errors_of(kSmallDeck, {whole}), "") << whole;
}

TEST(DeckErrors, WhatAnOverrideTakesOutOfTheDeck) {
  EXPECT_EQ(
      errors_of(kSmallDeck, {"train.samples=3200"}),
      "--set train.samples=3200: train.iterations = 100 and train.samples = 3200 both say how "
      "long to train; give one ('train.iterations=' takes it out of the deck)" +
          kOneError);
  EXPECT_EQ(errors_of(kSmallDeck, {"schedule.type=lr-range-test", "schedule.minimum=1e-5"}),
            "--set schedule.type=lr-range-test: schedule.type = lr-range-test has no use for "
            "'schedule.peak'; leave it out ('schedule.peak=' takes it out of the deck)" +
                kOneError);
  EXPECT_EQ(errors_of(kSmallDeck, {"recompute.layers=2"}),
            "--set recompute.layers=2: 'recompute.layers' needs recompute.granularity = full, but "
            "it is none; leave it out" +
                kOneError);
  EXPECT_EQ(errors_of(kSmallDeck, {"train.iterations=", "train.samples=3200"}), "");
}

}  // namespace
}  // namespace trireme::deck
