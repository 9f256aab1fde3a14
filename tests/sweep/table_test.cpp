#include "sweep/sweep.hpp"

#include <nlohmann/json.hpp>

#include "sweeps.hpp"

namespace trireme::sweep {
namespace {

class TableTest : public SweepTest {
 protected:
  std::vector<Status> statuses_{
      {State::finished,
       "",
       {.started = true,
        .exit_code = 0,
        .iteration = 100,
        .loss = 2.5,
        .valid_loss = 2.75,
        .ms = 12.345,
        .samples_per_second = 648,
        .tokens_per_second = 20736,
        .mfu = 0.4321,
        .memory_bytes = 3.5 * (1 << 20)}},
      {State::running, "", {.started = true, .iteration = 7, .loss = 5.125}},
      {State::failed, "exit code 74", {}},
      {State::waiting, "", {}}};

  PlannedSweep sweep() const {
    PlannedSweep planned = plan();
    for (PlannedRun& run : planned.runs) run.need.bytes = 8u << 20;
    return planned;
  }
};

TEST_F(TableTest, Status) {
  EXPECT_EQ(status_text(sweep(), statuses_),
            "run                 state                  iterations    loss\n"
            "tensor=1,peak=1e-3  finished                  100/100  2.5000\n"
            "tensor=1,peak=2e-3  running                     7/100  5.1250\n"
            "tensor=2,peak=1e-3  failed (exit code 74)       0/100       -\n"
            "tensor=2,peak=2e-3  waiting                     0/100       -\n"
            "4 runs: 1 waiting, 1 running, 1 failed, 1 finished\n");
}

TEST_F(TableTest, Text) {
  EXPECT_EQ(
      table(sweep(), statuses_, TableFormat::text),
      "run                 state     parallel.tensor  schedule.peak    loss  valid loss  "
      "ms/iteration  samples/s  tokens/s  MFU %  memory MiB  planned MiB\n"
      "tensor=1,peak=1e-3  finished                1           1e-3  2.5000      2.7500          "
      "12.3     648.00     20736   43.2           4            8\n"
      "tensor=1,peak=2e-3  running                 1           2e-3  5.1250           -          "
      "   -          -         -      -           -            8\n"
      "tensor=2,peak=1e-3  failed                  2           1e-3       -           -          "
      "   -          -         -      -           -            8\n"
      "tensor=2,peak=2e-3  waiting                 2           2e-3       -           -          "
      "   -          -         -      -           -            8\n");
}

TEST_F(TableTest, CsvAndMarkdownWithExtraColumns) {
  const ExtraColumns extra = read_extra_columns(
      "# published\nrun,\"ms, theirs\"\n\n\"tensor=1,peak=2e-3\",\"1\"\"2\"\r\n", "b.csv", sweep());
  EXPECT_EQ(table(sweep(), statuses_, TableFormat::csv, extra),
            "run,state,parallel.tensor,schedule.peak,loss,valid loss,ms/iteration,samples/s,"
            "tokens/s,MFU %,memory MiB,planned MiB,\"ms, theirs\"\n"
            "\"tensor=1,peak=1e-3\",finished,1,1e-3,2.5000,2.7500,12.3,648.00,20736,43.2,4,8,\n"
            "\"tensor=1,peak=2e-3\",running,1,2e-3,5.1250,,,,,,,8,\"1\"\"2\"\n"
            "\"tensor=2,peak=1e-3\",failed,2,1e-3,,,,,,,,8,\n"
            "\"tensor=2,peak=2e-3\",waiting,2,2e-3,,,,,,,,8,\n");
  const std::string markdown = table(sweep(), statuses_, TableFormat::markdown, extra);
  EXPECT_EQ(
      markdown.find("| run                | state    | parallel.tensor | schedule.peak |   loss |"),
      0);
  EXPECT_NE(markdown.find("\n| ------------------ | -------- | --------------: | ------------: |"),
            std::string::npos);
  EXPECT_NE(markdown.find("\n| tensor=1,peak=2e-3 | running  |               1 |          2e-3 | "
                          "5.1250 |          - |"),
            std::string::npos);
}

TEST_F(TableTest, Json) {
  const auto rows = nlohmann::json::parse(table(sweep(), statuses_, TableFormat::json));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1]["run"], "tensor=1,peak=2e-3");
  EXPECT_EQ(rows[1]["state"], "running");
  EXPECT_EQ(rows[1]["schedule.peak"], 2e-3);
  EXPECT_EQ(rows[1]["loss"], 5.125);
  EXPECT_TRUE(rows[1]["tokens/s"].is_null());
}

TEST_F(TableTest, JsonKeepsTextThatLooksLikeNumbers) {
  const PlannedSweep texts = plan(
      {"sweep.parallel.tensor=~", "sweep.schedule.peak=~", "schedule.peak=1e-3",
       "sweep.cases={7: {data.train: \"007\", run.seed: 1_000, schedule.warmup: 5 iterations}, "
       "1e5: {data.train: \"1e5\", run.seed: 2, schedule.warmup: 5%}}"});
  const ExtraColumns extra =
      read_extra_columns("run,score,commit\n7,1.5,100e2\n1e5,,abc\n", "b.csv", texts);
  const std::vector<Status> statuses(statuses_.begin(), statuses_.begin() + 2);
  const auto rows = nlohmann::json::parse(table(texts, statuses, TableFormat::json, extra));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["run"], "7");
  EXPECT_EQ(rows[1]["run"], "1e5");
  EXPECT_TRUE(rows[0]["data.train"].is_string()) << rows[0]["data.train"];
  EXPECT_TRUE(rows[1]["data.train"].is_string()) << rows[1]["data.train"];
  EXPECT_EQ(rows[0]["run.seed"], 1000);
  EXPECT_EQ(rows[0]["schedule.warmup"], "5 iterations");
  EXPECT_EQ(rows[1]["schedule.warmup"], 0.05);
  EXPECT_EQ(rows[0]["loss"], 2.5);
  EXPECT_EQ(rows[0]["score"], 1.5);
  EXPECT_TRUE(rows[1]["score"].is_null());
  EXPECT_EQ(rows[0]["commit"], "100e2");
}

TEST_F(TableTest, ExtraColumnsThatDoNotFit) {
  const auto error = [&](const std::string& text) -> std::string {
    try {
      read_extra_columns(text, "b.csv", sweep());
      return "";
    } catch (const DataError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error("run,a\n\"tensor=3\",1\n"), "b.csv:2: the sweep has no run 'tensor=3'");
  EXPECT_EQ(error("run,a\n\"tensor=1,peak=1e-3\",1,2\n"),
            "b.csv:2: 2 cells after the name, but the first line has 1");
  const std::string row = "\"tensor=1,peak=1e-3\",1\n";
  EXPECT_EQ(error("run,a\n" + row + row), "b.csv:3: run 'tensor=1,peak=1e-3' is there twice");
  EXPECT_EQ(error("run,loss\n" + row),
            "b.csv:1: the table has a column 'loss' already; give it another name");
  EXPECT_EQ(error("run,a,a\n"),
            "b.csv:1: the table has a column 'a' already; give it another name");
  EXPECT_EQ(error("# nothing\n"), "b.csv: no line with the names of columns");
}

}  // namespace
}  // namespace trireme::sweep
