#include "report/runs/run_history.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "../../message_of.hpp"
#include "../../scratch_folder.hpp"
#include "core/error.hpp"
#include "report/run_files.hpp"

namespace trireme::report {
namespace {

class ComparisonTest : public testing::Test {
 protected:
  /// A run folder with a start, training lines of `losses` every 10 iterations, and an evaluation.
  RunHistory make_run(const std::string& name, const std::vector<double>& losses,
                      const std::string& deck = "") {
    const auto folder = scratch_.path() / name;
    OutputFile metrics(folder / "metrics.jsonl", OutputFile::Mode::fresh);
    metrics.line(json_line(StartEvent{.program = "trireme-pretrain",
                                      .version = name == "b" ? "0.3.0" : "0.2.0",
                                      .device = "host",
                                      .hosts = {"node0"}},
                           1));
    std::int64_t iteration = 0;
    for (const double loss : losses) {
      iteration += 10;
      metrics.line(json_line(TrainEvent{.iteration = iteration,
                                        .consumed_samples = 4 * iteration,
                                        .consumed_tokens = 64 * iteration,
                                        .loss = loss,
                                        .learning_rate = 1e-4 * static_cast<double>(iteration),
                                        .ms = 5,
                                        .tokens_per_second = 1000},
                             2));
    }
    metrics.line(json_line(EvalEvent{.iteration = iteration,
                                     .consumed_samples = 4 * iteration,
                                     .consumed_tokens = 64 * iteration,
                                     .split = "valid",
                                     .loss = 7.5},
                           3));
    if (!deck.empty()) std::ofstream(folder / "deck.yaml") << deck;
    return read_run(folder);
  }

  ScratchFolder scratch_;
};

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

TEST_F(ComparisonTest, AHistoryHasTrainingLinesAndEvaluations) {
  const RunHistory run = make_run("a", {9, 8});
  EXPECT_EQ(run.start.version, "0.2.0");
  ASSERT_EQ(run.train.size(), 2u);
  EXPECT_EQ(run.train[1].tokens, 1280.0);
  EXPECT_EQ(run.train[1].learning_rate, 2e-3);
  ASSERT_EQ(run.validation.size(), 1u);
  EXPECT_EQ(run.validation[0].loss, 7.5);
  EXPECT_EQ(run.validation[0].samples, 80.0);
}

TEST_F(ComparisonTest, AChartHasAPanelForEachKnownValue) {
  const std::vector<RunHistory> runs = {make_run("a", {9, 8, 7}), make_run("b", {9, kNoValue, 6})};
  const Chart chart = plot_runs(runs, PlotAxis::tokens, /*logarithmic_loss=*/true);
  EXPECT_EQ(chart.names, (std::vector<std::string>{runs[0].name, runs[1].name}));
  EXPECT_EQ(chart.x_label, "consumed tokens");
  ASSERT_EQ(chart.panels.size(), 3u);
  EXPECT_TRUE(chart.panels[0].logarithmic);
  ASSERT_EQ(chart.panels[0].series.size(), 4u) << "training and validation of two runs";
  EXPECT_TRUE(chart.panels[0].series[1].dots);
  EXPECT_EQ(chart.panels[0].series[2].color, 1u);
  EXPECT_EQ(chart.panels[0].series[0].points[1], std::pair(1280.0, 8.0));
  EXPECT_TRUE(std::isnan(chart.panels[0].series[2].points[1].second)) << "interrupts the line";
  EXPECT_EQ(chart.panels[1].title, "learning rate");
}

TEST_F(ComparisonTest, ALogWithoutSamplesHasNoSuchAxis) {
  std::ofstream(scratch_.path() / "x.log")
      << " iteration 10/ 20 | elapsed time per iteration (ms): 5.0 | learning rate: 1.0E-04 | lm "
         "loss: 3.0E+00 |\n";
  const RunHistory log = read_run(scratch_.path() / "x.log");
  ASSERT_EQ(log.train.size(), 1u);
  EXPECT_EQ(log.train[0].learning_rate, 1e-4);
  EXPECT_EQ(plot_runs({log}, PlotAxis::iterations, false).panels.size(), 2u);
  EXPECT_NE(message_of<DataError>([&] {
              plot_runs({log}, PlotAxis::samples, false);
            }).find("do not have the consumed samples (try --x iterations)"),
            std::string::npos);
  EXPECT_NE(message_of<DataError>([&] {
              plot_runs({RunHistory{.name = "empty"}}, PlotAxis::iterations, false);
            }).find("empty: no training line"),
            std::string::npos);
}

TEST_F(ComparisonTest, CsvHasARowForEachLine) {
  const RunHistory run = make_run("a", {9.5, kNoValue});
  const std::string csv = export_csv({run});
  EXPECT_EQ(csv.substr(0, csv.find(',')), "run");
  EXPECT_NE(csv.find(run.name + ",train,10,40,640,9.5,0.001,0,0,5,1000,0,"), std::string::npos)
      << csv;
  EXPECT_NE(csv.find(run.name + ",train,20,80,1280,,0.002,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(run.name + ",valid,20,80,1280,7.5,,,,,,,"), std::string::npos) << csv;
}

TEST_F(ComparisonTest, ADifferenceNamesKeysVersionsAndLosses) {
  const std::string deck = R"(run: {name: A, seed: 1234}
model: {layers: 2, hidden: 8, heads: 2, sequence: 16, vocab: 64}
batch: {micro: 1, global: 2}
schedule: {peak: 0.001}
train: {iterations: 30}
)";
  std::string other = deck;
  other.replace(other.find("0.001"), 5, "0.002");
  other.replace(other.find("name: A"), 7, "name: B");
  const RunHistory a = make_run("a", {9, 8, 7}, deck), b = make_run("b", {9, 8.5, 6.75}, other);
  const RunDifference difference = compare_runs(a, b);
  EXPECT_FALSE(difference.same());
  ASSERT_EQ(difference.properties.size(), 1u);
  EXPECT_EQ(difference.properties[0].name, "version");
  ASSERT_EQ(difference.keys.size(), 1u) << "run.name does not count";
  EXPECT_EQ(difference.keys[0].name, "schedule.peak");
  EXPECT_EQ(difference.loss.common, 3u);
  EXPECT_EQ(difference.loss.diverged, 20);
  EXPECT_EQ(difference.loss.largest_at, 20);
  EXPECT_DOUBLE_EQ(difference.loss.largest, 0.5);
  EXPECT_EQ(to_text(difference),
            a.name + " | " + b.name +
                "\nprogram:\n  version: 0.2.0 | 0.3.0\ndeck: 1 different key\n"
                "  schedule.peak: 0.001 | 0.002\n"
                "loss: different in 3 common training lines, iterations 10 to 30\n"
                "  first difference: iteration 20\n"
                "  largest difference: 0.5 at iteration 20\n"
                "  at iteration 30: 7.000000 | 6.750000\n");
  EXPECT_TRUE(compare_runs(a, a).same());
  EXPECT_NE(to_text(compare_runs(a, a)).find("program: same version"), std::string::npos);
}

TEST_F(ComparisonTest, LossesOfEarlierStartsAreNotThoseOfTheDeck) {
  const std::string deck = R"(model: {layers: 2, hidden: 8, heads: 2, sequence: 16, vocab: 64}
batch: {micro: 1, global: 2}
schedule: {peak: 0.001}
train: {iterations: 30}
)";
  const RunHistory a = make_run("a", {9, 8, 7}, deck);
  RunHistory b = make_run("c", {9, 8, 7}, deck);
  EXPECT_EQ(to_text(compare_runs(a, b)).find("this is the deck"), std::string::npos);
  b.start.iteration = 10;  // where its last start resumed
  const std::string text = to_text(compare_runs(a, b));
  EXPECT_NE(text.find("deck: equal except run.name and run.output\n  " + b.name +
                      ": this is the deck of its last start, from iteration 11 on; those of "
                      "earlier losses are not kept\nloss: equal in 3 common training lines"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("  " + a.name + ": this is the deck"), std::string::npos) << text;
  b.train.erase(b.train.begin());  // no earlier loss is compared
  EXPECT_EQ(to_text(compare_runs(a, b)).find("this is the deck"), std::string::npos);
}

TEST_F(ComparisonTest, ALossThatIsNotFiniteIsDifferentFromAFiniteOne) {
  const RunHistory a = make_run("a", {9, kNoValue, kNoValue}), b = make_run("c", {9, 8, 7});
  const RunDifference difference = compare_runs(a, b);
  EXPECT_FALSE(difference.same());
  const std::string text = to_text(difference);
  EXPECT_NE(text.find("loss: different in 3 common training lines, iterations 10 to 30\n"
                      "  first difference: iteration 20\n"
                      "  at iteration 30: not finite | 7.000000\n"),
            std::string::npos)
      << text;
  EXPECT_FALSE(compare_runs(a, a).loss.diverged);
}

TEST_F(ComparisonTest, LinesWithoutALossAreNotCompared) {
  RunHistory a = make_run("a", {9, 8}), b = make_run("c", {9, 8});
  a.train[0].loss.reset();
  a.train[0].has_loss = false;
  const LossDifference difference = compare_runs(a, b).loss;
  EXPECT_EQ(difference.common, 1u);
  EXPECT_FALSE(difference.diverged);
}

TEST_F(ComparisonTest, RunsWithoutCommonIterationsAreNotTheSame) {
  RunHistory a = make_run("a", {9}), b = make_run("c", {9});
  b.train[0].iteration = 11;
  const RunDifference difference = compare_runs(a, b);
  EXPECT_EQ(difference.loss.common, 0u);
  EXPECT_FALSE(difference.same());
  EXPECT_NE(to_text(difference).find("no iteration is reported by both runs"), std::string::npos);
  EXPECT_NE(to_text(difference).find("deck: not compared"), std::string::npos);
}

TEST_F(ComparisonTest, MeansOfDifferentIterationsAreNotCompared) {
  // Losses of iterations 1, 2, ... are 1, 2, ...; the second run stops after 5 and resumes, the
  // third is killed after a checkpoint of 5, the fourth rewinds to 5.
  const auto write = [&](const char* name, const std::vector<std::string>& lines) {
    OutputFile metrics(scratch_.path() / name / "metrics.jsonl", OutputFile::Mode::fresh);
    for (const std::string& line : lines) metrics.line(line);
    return read_run(scratch_.path() / name);
  };
  const auto line = [](std::int64_t iteration, double loss) {
    return json_line(TrainEvent{.iteration = iteration, .loss = loss}, 1);
  };
  const std::string start = json_line(StartEvent{}, 0),
                    resumed = json_line(StartEvent{.iteration = 5}, 0);
  const RunHistory whole =
      write("whole", {start, line(2, 1.5), line(4, 3.5), line(6, 5.5), line(8, 7.5)});
  const RunHistory others[] = {
      write("stopped",
            {start, line(2, 1.5), line(4, 3.5), line(5, 5), resumed, line(6, 6), line(8, 7.5)}),
      write("killed", {start, line(2, 1.5), line(4, 3.5), resumed, line(6, 6), line(8, 7.5)}),
      write("rewound",
            {start, line(2, 1.5), line(4, 3.5), line(6, 9),
             json_line(RewindEvent{.iteration = 5, .from = 7}, 0), line(6, 6), line(8, 7.5)})};
  for (const RunHistory& other : others) {
    const RunDifference difference = compare_runs(whole, other);
    EXPECT_TRUE(difference.same());
    EXPECT_NE(to_text(difference)
                  .find("loss: equal in 3 common training lines, iterations 2 to 8\n"
                        "  not compared: 1 common training line, of means of different iterations"),
              std::string::npos)
        << to_text(difference);
  }
  const RunDifference none = compare_runs(whole, write("every 4", {start, line(4, 2.5)}));
  EXPECT_FALSE(none.same());
  EXPECT_NE(to_text(none).find("loss: nothing to compare\n  not compared: 1 common training line"),
            std::string::npos)
      << to_text(none);
}

TEST_F(ComparisonTest, ALogIsComparedToItsDigits) {
  const RunHistory run = make_run("a", {9.12345678, 8.5, 7.25});
  const auto write = [&](const char* losses[]) {
    std::ofstream log(scratch_.path() / "console.log");
    for (int i = 0; i < 3; ++i)
      log << fmt::format(" iteration {}/ 30 | lm loss: {} |\n", 10 * (i + 1), losses[i]);
    log.close();
    return read_run(scratch_.path() / "console.log");
  };
  const char* same[] = {"9.123457E+00", "8.500000E+00", "7.250000E+00"};
  const RunDifference equal = compare_runs(run, write(same));
  EXPECT_TRUE(equal.same());
  EXPECT_NE(to_text(equal).find("loss: equal in 3 common training lines, iterations 10 to 30, to "
                                "the 7 digits of a log\n"),
            std::string::npos)
      << to_text(equal);
  const char* other[] = {"9.123457E+00", "8.500001E+00", "7.250000E+00"};
  const LossDifference loss = compare_runs(write(other), run).loss;
  EXPECT_EQ(loss.diverged, 20);
  EXPECT_NEAR(loss.largest, 1e-6, 1e-12);
  EXPECT_EQ(loss.largest_at, 20);
  // A log repeats iterations without the checkpoint from which a start resumes.
  std::ofstream(scratch_.path() / "console.log", std::ios::app)
      << " iteration 20/ 30 | lm loss: 8.500000E+00 |\n"
         " iteration 30/ 30 | lm loss: 7.250000E+00 |\n";
  const LossDifference repeated = compare_runs(run, read_run(scratch_.path() / "console.log")).loss;
  EXPECT_EQ(repeated.common, 2u);
  EXPECT_EQ(repeated.other_means, 1u);
}

// Killed after iteration 18 and resumed from 15: the line of 20 is a mean of five iterations.
TEST_F(ComparisonTest, ALogSaysFromWhereAStartContinued) {
  const RunHistory run = make_run("a", {9.0, 8.5, 7.25});
  for (const char* says : {"restart    from a/checkpoints/step-00000015.h5, iteration 15",
                           "  successfully loaded checkpoint from a at iteration 15",
                           " iteration 18: a spike: resuming from 'a' of iteration 15, without"}) {
    std::ofstream(scratch_.path() / "console.log")
        << " iteration 10/ 30 | lm loss: 9.000000E+00 |\n"
        << says << "\n iteration 20/ 30 | lm loss: 8.700000E+00 |\n"
        << " iteration 30/ 30 | lm loss: 7.250000E+00 |\n";
    const RunDifference found = compare_runs(run, read_run(scratch_.path() / "console.log"));
    EXPECT_TRUE(found.same()) << says;
    EXPECT_EQ(found.loss.other_means, 1u) << says;
  }
}

}  // namespace
}  // namespace trireme::report
