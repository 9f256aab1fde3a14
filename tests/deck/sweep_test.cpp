#include "deck/sweep/sweep.hpp"

#include <gtest/gtest.h>

#include <map>

#include "decks.hpp"

namespace trireme::deck {
namespace {

using Files = std::map<std::string, std::string>;

Sweep expand(const std::string& section, const std::vector<std::string>& overrides = {},
             const Files& files = {}) {
  return expand_sweep(kSmallDeck + section, "lr.yaml", overrides, [&](const std::string& path) {
    const auto file = files.find(path);
    if (file == files.end()) throw IoError("cannot open '{}'", path);
    return file->second;
  });
}

// "name: key=value key=value", a line for each run.
std::string runs_of(const std::string& section, const std::vector<std::string>& overrides = {},
                    const Files& files = {}) {
  std::string text;
  for (const SweepRun& run : expand(section, overrides, files).runs) {
    text += fmt::format("{}:", run.name);
    for (const SweptValue& value : run.values) text += fmt::format(" {}", value.as_override());
    text += '\n';
  }
  return text;
}

void expect_error(const std::string& line, const std::string& section,
                  const std::vector<std::string>& overrides = {}, const Files& files = {}) {
  try {
    expand(section, overrides, files);
    ADD_FAILURE() << "no error in " << section;
  } catch (const DeckError& error) {
    EXPECT_EQ(
        error.what(),
        line + "\n1 error; nothing was started. 'trireme-pretrain --help deck' lists every key.");
  }
}

TEST(Sweep, EveryCombinationOfLists) {
  EXPECT_EQ(runs_of("sweep:\n  schedule.peak: [1e-4, 3e-4]\n  run: {seed: [1, 2]}\n"),
            "peak=1e-4,seed=1: schedule.peak=1e-4 run.seed=1\n"
            "peak=1e-4,seed=2: schedule.peak=1e-4 run.seed=2\n"
            "peak=3e-4,seed=1: schedule.peak=3e-4 run.seed=1\n"
            "peak=3e-4,seed=2: schedule.peak=3e-4 run.seed=2\n");
}

TEST(Sweep, Ranges) {
  EXPECT_EQ(runs_of("sweep: {run.seed: 1..3}\n"),
            "seed=1: run.seed=1\nseed=2: run.seed=2\nseed=3: run.seed=3\n");
  EXPECT_EQ(runs_of("sweep: {optimizer.beta2: {from: 0.9, to: 1.0, step: 0.05}}\n"),
            "beta2=0.9: optimizer.beta2=0.9\nbeta2=0.95: optimizer.beta2=0.95\n"
            "beta2=1: optimizer.beta2=1\n");
  EXPECT_EQ(runs_of("sweep: {schedule.peak: {from: 1e-5, to: 1e-3, factor: 10}}\n"),
            "peak=1e-05: schedule.peak=1e-05\npeak=0.0001: schedule.peak=0.0001\n"
            "peak=0.001: schedule.peak=0.001\n");
  EXPECT_EQ(runs_of("sweep: {model.layers: {from: 8, to: 1, factor: 0.5}}\n"),
            "layers=8: model.layers=8\nlayers=4: model.layers=4\nlayers=2: model.layers=2\n"
            "layers=1: model.layers=1\n");
  EXPECT_EQ(runs_of("sweep: {model.layers: {from: 6, to: 1, step: -2}}\n"),
            "layers=6: model.layers=6\nlayers=4: model.layers=4\nlayers=2: model.layers=2\n");
}

TEST(Sweep, ZippedKeysGoTogether) {
  EXPECT_EQ(runs_of("sweep:\n  zip: {model.hidden: [64, 128], model.heads: [4, 8]}\n"
                    "  run.seed: 1..2\n"),
            "hidden=64,heads=4,seed=1: model.hidden=64 model.heads=4 run.seed=1\n"
            "hidden=64,heads=4,seed=2: model.hidden=64 model.heads=4 run.seed=2\n"
            "hidden=128,heads=8,seed=1: model.hidden=128 model.heads=8 run.seed=1\n"
            "hidden=128,heads=8,seed=2: model.hidden=128 model.heads=8 run.seed=2\n");
  const auto two = expand(
      "sweep:\n  zip: [{model.hidden: [64, 128], model.heads: 4..5}, {batch: {micro: [1, 2]}}]\n");
  EXPECT_EQ(two.runs.size(), 4);
}

TEST(Sweep, CasesHaveTheirNames) {
  const std::string section =
      "sweep:\n"
      "  run.seed: [7, 8]\n"
      "  cases:\n"
      "    flat: {parallel: {tensor: 2, pipeline: 1}}\n"
      "    deep: {parallel.pipeline: 2, parallel.partition: [1, 3]}\n"
      "    plain:\n";
  EXPECT_EQ(runs_of(section),
            "flat,seed=7: run.seed=7 parallel.tensor=2 parallel.pipeline=1\n"
            "deep,seed=7: run.seed=7 parallel.pipeline=2 parallel.partition=[1, 3]\n"
            "plain,seed=7: run.seed=7\n"
            "flat,seed=8: run.seed=8 parallel.tensor=2 parallel.pipeline=1\n"
            "deep,seed=8: run.seed=8 parallel.pipeline=2 parallel.partition=[1, 3]\n"
            "plain,seed=8: run.seed=8\n");
  EXPECT_EQ(expand(section).keys,
            (std::vector<std::string>{"run.seed", "parallel.tensor", "parallel.pipeline",
                                      "parallel.partition"}));
}

TEST(Sweep, FilesHaveALinePerRun) {
  const Files files{{"runs.txt",
                     "# rates\n\nschedule.peak=1e-4 run.seed=3\r\n"
                     "data.train=[0.5, a, 0.5, \"b c\"]\n  schedule.peak=2e-4"}};
  EXPECT_EQ(runs_of("sweep: {file: runs.txt}\n", {}, files),
            "peak=1e-4,seed=3: schedule.peak=1e-4 run.seed=3\n"
            "train=0.5-a-0.5-bc: data.train=[0.5, a, 0.5, \"b c\"]\n"
            "peak=2e-4: schedule.peak=2e-4\n");
  EXPECT_EQ(expand("sweep: {file: runs.txt}\n", {}, files).runs[1].values[0].where, "runs.txt:4");
}

TEST(Sweep, ValuesOfAnyKindBecomeOverrides) {
  EXPECT_EQ(runs_of("sweep:\n  data.train: [a, \"3\", [0.5, a, 0.5, 'b, c']]\n"),
            "train=a: data.train=a\ntrain=3: data.train=\"3\"\n"
            "train=0.5-a-0.5-b-c: data.train=[0.5, a, 0.5, \"b, c\"]\n");
  EXPECT_EQ(runs_of("sweep: {batch: {rampup: {samples: [~, 100]}}}\n"),
            "samples=default: batch.rampup.samples=\nsamples=100: batch.rampup.samples=100\n");
  for (const SweepRun& run : expand("sweep:\n  data.train: [\"3\", [\"a: b\", c]]\n").runs) {
    const Deck deck =
        parse(kSmallDeck + "sweep: 1\n", "x.yaml", {"sweep=", run.values[0].as_override()});
    EXPECT_EQ(deck.data.train->names.back(), deck.data.train->names.size() == 1 ? "3" : "c");
  }
}

TEST(Sweep, NamesTellKeysApart) {
  EXPECT_EQ(expand("sweep: {model.dropout.attention: [0], model.dropout.hidden: [0, 0.1]}\n")
                .runs[1]
                .name,
            "attention=0,hidden=0.1");
  EXPECT_EQ(expand("sweep: {train.iterations: [5], evaluate.iterations: [2]}\n").runs[0].name,
            "train.iterations=5,evaluate.iterations=2");
  const std::string many(200, 'a');
  const auto runs = expand(fmt::format("sweep: {{data.train: [{0}b, {0}c]}}\n", many)).runs;
  EXPECT_LE(runs[0].name.size(), 120);
  EXPECT_NE(runs[0].name, runs[1].name);
}

TEST(Sweep, OverridesReachTheSection) {
  const std::string section =
      "sweep: {run.seed: 1..3, jobs: 2, ranks: 4, launcher: \"a {ranks}\"}\n";
  EXPECT_EQ(runs_of(section, {"sweep.run.seed=[5]", "model.layers=2"}), "seed=5: run.seed=5\n");
  const Sweep sweep =
      expand(section, {"sweep.jobs=3", "sweep.ranks=", "model.layers=2", "sweep.sbatch=--time=1"});
  EXPECT_EQ(sweep.jobs, 3);
  EXPECT_EQ(sweep.ranks, std::nullopt);
  EXPECT_EQ(sweep.launcher, "a {ranks}");
  EXPECT_EQ(sweep.sbatch, "--time=1");
  EXPECT_EQ(sweep.overrides, std::vector<std::string>{"model.layers=2"});
}

TEST(Sweep, WhatAnOverrideReplacesKeepsItsPlace) {
  const std::string section = "sweep: {model: {layers: [1, 2]}, schedule.peak: [1e-3]}\n";
  EXPECT_EQ(runs_of(section, {"sweep.model.layers=[1, 3]"}),
            "layers=1,peak=1e-3: model.layers=1 schedule.peak=1e-3\n"
            "layers=3,peak=1e-3: model.layers=3 schedule.peak=1e-3\n");
  EXPECT_EQ(runs_of(section, {"sweep.run.seed=[7]", "sweep.model.layers="}),
            "peak=1e-3,seed=7: schedule.peak=1e-3 run.seed=7\n");
}

TEST(SweepErrors, Keys) {
  expect_error("lr.yaml:15:3: unknown key 'model.layrs' — did you mean 'layers'?",
               "sweep:\n  model.layrs: [1]\n");
  expect_error("lr.yaml:15:3: unknown key 'case' — did you mean 'cases'?",
               "sweep:\n  case: {a: {run.seed: 1}}\n  run.seed: 1..2\n");
  expect_error("lr.yaml:15:3: 'model' is a section: name one of its keys",
               "sweep:\n  model: [1]\n");
  expect_error(
      "lr.yaml:15:3: the sweep names its runs, whose folders are inside the deck's run.output; "
      "leave run.output out of it",
      "sweep:\n  run.output: [a, b]\n");
  expect_error("lr.yaml:16:3: repeated key 'run.seed' (first in line 15)",
               "sweep:\n  run.seed: [1]\n  run.seed: [2]\n");
  expect_error("lr.yaml:16:3: 'run.seed' is set by another part of the sweep, too",
               "sweep:\n  run.seed: [1]\n  cases: {a: {run.seed: 2}}\n");
  expect_error("--set run.seed=4: the sweep sets run.seed itself; change it there",
               "sweep: {run.seed: 1..2}\n", {"run.seed=4"});
}

TEST(SweepErrors, Values) {
  const std::string expected =
      "expected a list [a, b, ...], a range such as 1..8, or {from: A, to: B, step: C}; what all "
      "runs share belongs in its own section";
  expect_error("lr.yaml:14:9: sweep.run.seed = 4: " + expected, "sweep: {run.seed: 4}\n");
  expect_error("lr.yaml:14:9: sweep.run.seed: the list is empty", "sweep: {run.seed: []}\n");
  expect_error("lr.yaml:14:9: sweep.run.seed: 4 is there twice", "sweep: {run.seed: [4, 4]}\n");
  expect_error("lr.yaml:14:9: sweep.optimizer.clip: 0.001 (1e-3) is there twice",
               "sweep: {optimizer.clip: [1e-3, 0.01, 0.001]}\n");
  expect_error("lr.yaml:14:9: sweep.run.seed: 1000 (1k) is there twice",
               "sweep: {run.seed: [1k, 1000]}\n");
  expect_error("lr.yaml:14:9: sweep.run.seed = 5..1: steps of 1 never lead from 5 to 1",
               "sweep: {run.seed: 5..1}\n");
  expect_error("lr.yaml:14:9: sweep.run.seed = 1..x: expected a whole number",
               "sweep: {run.seed: 1..x}\n");
  expect_error("lr.yaml:14:9: sweep.run.seed = 1..1000000: more than 10000 values",
               "sweep: {run.seed: 1..1000000}\n");
  expect_error("lr.yaml:14:9: sweep.run.seed: multiplying by -2 never leads from 1 to 8",
               "sweep: {run.seed: {from: 1, to: 8, factor: -2}}\n");
  expect_error(
      "lr.yaml:14:9: sweep.run.seed: a range needs 'from', 'to' and one of 'step' and "
      "'factor'",
      "sweep: {run.seed: {from: 1, to: 8}}\n");
  expect_error("lr.yaml:14:25: sweep.jobs = 0: must be from 1 to 10000",
               "sweep: {run.seed: 1..2, jobs: 0}\n");
  expect_error("lr.yaml:14:9: the sweep has 10100 runs (at most 10000)",
               "sweep: {run.seed: 1..101, data.seed: 1..100}\n");
}

TEST(SweepErrors, ZipsCasesAndFiles) {
  expect_error(
      "lr.yaml:14:38: sweep.zip.model.heads: there are 1 values, but 2 of model.hidden; "
      "zipped keys have as many",
      "sweep: {zip: {model.hidden: [8, 16], model.heads: [2]}}\n");
  expect_error(
      "lr.yaml:14:17: sweep.cases: 'a/b' cannot name a folder of a run (use letters, digits and "
      "._+=,-; not 'sweep')",
      "sweep: {cases: {a/b: {run.seed: 1}, c: {run.seed: 2}}}\n");
  expect_error("lr.yaml:14:36: sweep.cases: repeated case 'a'",
               "sweep: {cases: {a: {run.seed: 1},  a: {run.seed: 2}}}\n");
  expect_error("lr.yaml:14:9: sweep.file: cannot open 'none.txt'", "sweep: {file: none.txt}\n");
  expect_error("lr.yaml:14:9: sweep.file: 'runs.txt', line 2: 'fast' is not KEY=VALUE",
               "sweep: {file: runs.txt}\n", {}, {{"runs.txt", "run.seed=1\nfast\n"}});
  expect_error("lr.yaml:14:9: sweep.file: 'runs.txt' holds no settings",
               "sweep: {file: runs.txt, run.seed: 1..2}\n", {}, {{"runs.txt", "# none\n"}});
  expect_error("lr.yaml:14:9: runs.txt:1: 'run.seed' is set twice", "sweep: {file: runs.txt}\n", {},
               {{"runs.txt", "run.seed=1 run.seed=2\n"}});
  expect_error("lr.yaml: 2 runs of the sweep would be called 'train=a-b'; name them by sweep.cases",
               "sweep: {data.train: [a/b, a-b]}\n");
}

TEST(SweepErrors, AnEndlessFile) {
  try {
    expand_sweep("sweep: {file: /dev/zero}\n", "x.yaml");
    ADD_FAILURE() << "/dev/zero was read";
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("sweep.file: '/dev/zero' is not a regular file but a device"),
              std::string::npos)
        << error.what();
  }
}

TEST(SweepErrors, NothingToSweep) {
  const std::string line =
      "lr.yaml: the deck has no section 'sweep:' with values to try; 'trireme-sweep --help "
      "deck.sweep' explains it";
  expect_error(line, "");
  expect_error(line, "sweep: {jobs: 2}\n");
  expect_error(line, "sweep:\n");
  expect_error("lr.yaml:14:8: 'sweep' is a section of KEY: [a, b, ...]; found 3", "sweep: 3\n");
}

}  // namespace
}  // namespace trireme::deck
