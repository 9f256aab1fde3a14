#include "report/runs/run_history.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../../scratch_folder.hpp"
#include "core/error.hpp"
#include "report/metrics.hpp"

namespace trireme::report {
namespace {

RunSummary summarize(const std::vector<TrainRow>& rows) {
  return summarize(RunHistory{.name = "x", .train = rows});
}
RunSummary summarize(const std::filesystem::path& path) { return summarize(read_run(path)); }

TEST(Summarize, TheLastLossIsThatOfTheLastIteration) {
  const RunSummary summary = summarize(std::vector<TrainRow>{{10, 3.0}, {20, std::nullopt}});
  EXPECT_FALSE(summary.last_loss) << "it is not finite any more";
  EXPECT_DOUBLE_EQ(*summary.best_loss, 3.0);
  // As of Megatron-LM where all updates of the interval were skipped.
  const TrainRow without{.iteration = 30, .has_loss = false};
  EXPECT_EQ(summarize(std::vector<TrainRow>{{20, 3.0}, without}).last_loss, 3.0);
}

TEST(Summarize, SpeedIsThatOfTheMedianTime) {
  const RunSummary summary =
      summarize(std::vector<TrainRow>{{.iteration = 1, .ms = 300, .tokens_per_second = 10},
                                      {.iteration = 2, .ms = 100, .tokens_per_second = 30},
                                      {.iteration = 3, .tokens_per_second = 1}});
  EXPECT_DOUBLE_EQ(*summary.ms, 100);
  EXPECT_DOUBLE_EQ(*summary.tokens_per_second, 30);
}

TEST(Summarize, OfNothingIsNothing) {
  const RunSummary summary = summarize(std::vector<TrainRow>());
  EXPECT_EQ(summary.iterations, 0);
  EXPECT_FALSE(summary.last_loss);
  EXPECT_FALSE(summary.ms);
}

class SummarizeFileTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }
  ScratchFolder folder_;
};

TEST_F(SummarizeFileTest, ReadsARunFolder) {
  write("metrics.jsonl",
        json_line(StartEvent{}, 1) + "\nodd\n" +
            json_line(TrainEvent{.iteration = 1, .loss = 4, .ms = 9, .mfu = 0.5}, 2) + "\r\n" +
            json_line(MemoryEvent{.peak_bytes = 77}, 2) + "\n{\"kind\":\"train\",\"iter");
  for (const auto& path : {folder_.path(), folder_.path() / "metrics.jsonl"}) {
    const RunSummary summary = summarize(path);
    EXPECT_EQ(summary.name, path.string());
    EXPECT_EQ(summary.iterations, 1);
    EXPECT_DOUBLE_EQ(*summary.last_loss, 4);
    EXPECT_DOUBLE_EQ(*summary.mfu, 0.5);
    EXPECT_DOUBLE_EQ(*summary.memory, 77);
  }
}

TEST_F(SummarizeFileTest, KeepsWhatARestartDidNotRepeat) {
  std::string events;
  for (const TrainEvent& event : {TrainEvent{.iteration = 10, .loss = 3.0, .ms = 100},
                                  TrainEvent{.iteration = 20, .loss = 1.0, .ms = 300},
                                  TrainEvent{.iteration = 30, .loss = 2.0, .ms = 300},
                                  TrainEvent{.iteration = 20, .loss = 2.5, .ms = 120},
                                  TrainEvent{.iteration = 30, .loss = 2.25, .ms = 110}})
    events += json_line(event, 1) + "\n";
  const RunSummary summary = summarize(write("metrics.jsonl", events));
  EXPECT_EQ(summary.iterations, 30);
  EXPECT_DOUBLE_EQ(*summary.last_loss, 2.25);
  EXPECT_DOUBLE_EQ(*summary.best_loss, 2.25) << "1.0 was of the part that was repeated";
  EXPECT_DOUBLE_EQ(*summary.ms, 110.0);
}

TEST_F(SummarizeFileTest, ReadsALogWithOddLinesAndACutEnd) {
  const RunSummary summary = summarize(write(
      "case.log",
      "  seq_length ........ 1024\r\nWARNING: odd\r\n"
      " iteration       10/      50 | elapsed time per iteration (ms): 2000.0 | global batch size: "
      "   32 | loss scale: 1.0 |\r\n"  // every update was skipped: no loss
      "time (ms) | forward-compute: 1.0\r\n"
      " iteration       20/      50 | elapsed time per iteration (ms): 1000.0 | global batch size: "
      "   32 | lm loss: 1.0E+01 | loss scale: 1.0 |\r\n"
      " iteration       30/      50 | elapsed time per iteration (ms): 1000.0 | global batch size: "
      "   32 | lm loss: 9.0"));
  EXPECT_EQ(summary.iterations, 30);
  EXPECT_DOUBLE_EQ(*summary.last_loss, 10);
  EXPECT_DOUBLE_EQ(*summary.ms, 1000);
  EXPECT_DOUBLE_EQ(*summary.tokens_per_second, 32 * 1024);
}

TEST_F(SummarizeFileTest, NamesWhatIsNotThere) {
  EXPECT_THROW(summarize(folder_.path()), IoError) << "an empty folder";
  EXPECT_THROW(summarize(folder_.path() / "none.log"), IoError);
  EXPECT_EQ(summarize(write("empty.log", "")).iterations, 0);
}

// ---------------------------------------------------------------------------- tables

const std::vector<RunSummary> kRuns = {
    {.name = "runs/a",
     .iterations = 200,
     .last_loss = 3.25,
     .best_loss = 3.125,
     .ms = 412.04,
     .tokens_per_second = 1270000,
     .tflops = 431.5,
     .mfu = 0.431,
     .memory = 61.5 * (1 << 30)},
    {.name = "odd|name,\"b\"", .iterations = 0},
};

TEST(Table, ForPeopleIsAligned) {
  EXPECT_EQ(to_table(kRuns, TableFormat::text),
            "run           iterations      loss  best loss  ms/iteration  tokens/s  TFLOP/s/GPU  "
            "memory GiB  MFU %\n"
            "runs/a               200  3.250000   3.125000         412.0   1270000      431.500  "
            "     61.50   43.1\n"
            "odd|name,\"b\"           0         -          -             -         -            -  "
            "         -      -\n");
}

TEST(Table, InMarkdownKeepsBarsOutOfCells) {
  const std::string text = to_table(kRuns, TableFormat::markdown);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "| run           | iterations |     loss | best loss | ms/iteration | tokens/s | "
            "TFLOP/s/GPU | memory GiB | MFU % |");
  EXPECT_NE(text.find("\n| ------------- | ---------: | -------: |"), std::string::npos) << text;
  EXPECT_NE(text.find("\n| odd\\|name,\"b\" |          0 |        - |"), std::string::npos) << text;
}

TEST(Table, ForPeopleHasALineForEachRun) {
  for (const TableFormat format : {TableFormat::text, TableFormat::markdown}) {
    const std::string text = to_table({{.name = "a\nb"}}, format);
    EXPECT_NE(text.find("a b "), std::string::npos) << text;
  }
}

TEST(Table, InCsvHasAllDigitsAndQuotes) {
  EXPECT_EQ(to_table(kRuns, TableFormat::csv),
            "name,iterations,last_loss,best_loss,ms_per_iteration,tokens_per_second,tflops_per_gpu,"
            "memory_bytes,mfu\n"
            "runs/a,200,3.25,3.125,412.04,1270000,431.5,66035122176,0.431\n"
            "\"odd|name,\"\"b\"\"\",0,,,,,,,\n");
}

TEST(Table, InJsonHasNullForWhatIsNotKnown) {
  const auto table = nlohmann::json::parse(to_table(kRuns, TableFormat::json));
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0]["memory_bytes"], 66035122176.0);
  EXPECT_EQ(table[1]["name"], "odd|name,\"b\"");
  EXPECT_TRUE(table[1]["mfu"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(to_table({}, TableFormat::json)).empty());
}

}  // namespace
}  // namespace trireme::report
