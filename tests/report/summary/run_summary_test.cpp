#include "report/summary/run_summary.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "../../scratch_folder.hpp"
#include "core/error.hpp"
#include "report/metrics.hpp"

namespace trireme::report {
namespace {

TEST(Summarize, KeepsWhatARestartDidNotRepeat) {
  const RunSummary summary = summarize(
      "x",
      {{10, 3.0, 100.0}, {20, 1.0, 300.0}, {30, 2.0, 300.0}, {20, 2.5, 120.0}, {30, 2.25, 110.0}});
  EXPECT_EQ(summary.iterations, 30);
  EXPECT_DOUBLE_EQ(*summary.last_loss, 2.25);
  EXPECT_DOUBLE_EQ(*summary.best_loss, 2.25) << "1.0 was of the part that was repeated";
  EXPECT_DOUBLE_EQ(*summary.ms, 110.0);
  EXPECT_FALSE(summary.mfu);
}

TEST(Summarize, SpeedIsThatOfTheMedianTime) {
  const RunSummary summary = summarize("x", {{.iteration = 1, .ms = 300, .tokens_per_second = 10},
                                             {.iteration = 2, .ms = 100, .tokens_per_second = 30},
                                             {.iteration = 3, .tokens_per_second = 1}});
  EXPECT_DOUBLE_EQ(*summary.ms, 100);
  EXPECT_DOUBLE_EQ(*summary.tokens_per_second, 30);
}

TEST(Summarize, OfNothingIsNothing) {
  const RunSummary summary = summarize("x", std::vector<TrainRow>());
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

}  // namespace
}  // namespace trireme::report
