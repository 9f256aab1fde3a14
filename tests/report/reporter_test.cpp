#include "report/reporter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../file_size_limit.hpp"
#include "../scratch_folder.hpp"
#include "core/files.hpp"
#include "event_decoder.hpp"
#include "report/metrics.hpp"

namespace trireme::report {
namespace {

class ReporterTest : public testing::Test {
 protected:
  void SetUp() override { testing::internal::CaptureStdout(); }
  void TearDown() override { testing::internal::GetCapturedStdout(); }

  /// "start train:10 ...": the lines of metrics.jsonl.
  std::string kinds() const {
    std::istringstream lines(read_file(folder_.path() / "metrics.jsonl"));
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      EXPECT_GT(json["time"].get<double>(), 1.7e9);
      text += (text.empty() ? "" : " ") + json["kind"].get<std::string>();
      if (json.contains("iteration")) text += ":" + std::to_string(json["iteration"].get<int>());
    }
    return text;
  }

  /// The event files, oldest first.
  std::vector<std::filesystem::path> event_files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "tensorboard"))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }

  const ScratchFolder folder_;
  const ReporterOptions fresh_{.folder = folder_.path(), .run = {.iterations = 20, .samples = 80}};
};

TEST_F(ReporterTest, PrometheusGetsTheNewestValues) {
  ReporterOptions options = fresh_;
  const auto path = folder_.path() / "export" / "trireme.prom";
  options.prometheus = path.string();
  options.name = "a \"run\"";
  {
    Reporter reporter(options);
    reporter.on(StartEvent{.length = {.iterations = 20}, .layout = {.tensor = 2}});
    reporter.on(TrainEvent{.iteration = 10, .loss = 2.5, .ms = 1500, .skipped = 2});
    reporter.on(TrainEvent{.iteration = 20, .loss = std::nan(""), .skipped = 1});
    reporter.on(EvalEvent{.split = "valid", .loss = 3});
    reporter.on(
        EvalEvent{.split = "test", .loss = 4, .sentence_loss = 0.5, .sentence_accuracy = 0.75});
    reporter.on(RewindEvent{.iteration = 10, .from = 20, .length = {.iterations = 25}});
    reporter.on(TrainEvent{.iteration = 20, .loss = std::nan(""), .sentence_loss = 0.625});
    reporter.on(TaskEvent{.task = "piqa", .metrics = {{"accuracy", 0.25}}});
  }
  const std::string text = read_file(path);
  for (const char* line :
       {"# TYPE trireme_loss gauge\ntrireme_loss{run=\"a \\\"run\\\"\"} NaN\n",
        "trireme_ranks{run=\"a \\\"run\\\"\"} 2\n", "\ntrireme_up{", "} 20\n",
        "trireme_iterations{run=\"a \\\"run\\\"\"} 25\n",
        "trireme_skipped_iterations_total{run=\"a \\\"run\\\"\"} 3\n",
        "trireme_evaluation_loss{run=\"a \\\"run\\\"\",split=\"valid\"} 3\n",
        "trireme_sentence_loss{run=\"a \\\"run\\\"\"} 0.625\n", ",split=\"test\"} 0.5\n",
        ",split=\"test\"} 0.75\n", ",task=\"piqa\",metric=\"accuracy\"} 0.25\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(text.find("mfu"), std::string::npos);
}

TEST_F(ReporterTest, ShortLinesAreForStandardOutputAlone) {
  ReporterOptions options = fresh_;
  options.short_lines = true;
  Reporter(options).on(TrainEvent{.iteration = 10, .loss = 2.5});
  EXPECT_EQ(testing::internal::GetCapturedStdout().find("10/20 | loss 2.5000 |"), 0u);
  testing::internal::CaptureStdout();
  EXPECT_EQ(read_file(folder_.path() / "console.log").find(" iteration       10/      20 |"), 0u);
}

TEST_F(ReporterTest, ARewindCutsTheMetricsAndCountsWhatIsLost) {
  {
    Reporter reporter(fresh_);
    reporter.on(StartEvent{.program = "p", .version = "1", .hosts = {"a"}});
    for (const std::int64_t iteration : {4, 8, 12})
      reporter.on(TrainEvent{.iteration = iteration, .loss = 2.5, .ms = 500});
    reporter.on(RewindEvent{
        .iteration = 4, .from = 13, .samples = 36, .path = "c", .reason = "loss 9 is far"});
    reporter.on(TrainEvent{.iteration = 8, .loss = 2.25, .ms = 500});
    reporter.on(RewindEvent{.iteration = 4,
                            .from = 9,
                            .samples = 20,
                            .path = "c",
                            .length = {.iterations = 25, .samples = 200}});
    reporter.on(TrainEvent{.iteration = 8, .loss = 2.0, .ms = 500});
  }
  EXPECT_EQ(kinds(), "start:0 train:4 rewind:4 rewind:4 train:8");
  const std::string metrics = read_file(folder_.path() / "metrics.jsonl");
  EXPECT_NE(metrics.find(R"("from":13,"samples":36,"lost_seconds":4.0,"path":"c")"),
            std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find(R"("from":9,"samples":20,"lost_seconds":2.0)"), std::string::npos);
  const auto start = last_start(metrics, 8);
  ASSERT_TRUE(start);
  EXPECT_DOUBLE_EQ(start->lost, 6.0);
  EXPECT_EQ(start->lost_iterations, 9 + 5);
  EXPECT_DOUBLE_EQ(start->useful, 4.0);
  EXPECT_NE(read_file(folder_.path() / "console.log")
                .find(" iteration 13: loss 9 is far: resuming from 'c' of iteration 4, without the "
                      "data of 36 samples"),
            std::string::npos);
  EXPECT_NE(read_file(folder_.path() / "console.log").find(" iteration        8/      25 |"),
            std::string::npos)
      << "the run's new end";
}

TEST_F(ReporterTest, EveryEventReachesEveryView) {
  {
    Reporter reporter(fresh_);
    reporter.on(StartEvent{.program = "p", .version = "1", .hosts = {"a"}});
    reporter.print("free text");
    reporter.on(SkipEvent{.iteration = 10, .first = 10, .last = 12, .samples = 24});
    reporter.on(TrainEvent{.iteration = 10, .loss = 2.5, .learning_rate = 0.5, .mfu = 0.25});
    reporter.on(TimersEvent{.iteration = 10, .timers = {{.name = "optimizer", .max_ms = 4}}});
    reporter.on(EvalEvent{.iteration = 10, .split = "valid", .loss = 0});
    reporter.on(MemoryEvent{.iteration = 10, .peak_bytes = 1 << 20});
    reporter.on(CheckpointEvent{.iteration = 10, .path = "c", .seconds = 2});
    reporter.on(StopEvent{.reason = "finished", .iteration = 10});
  }
  EXPECT_EQ(kinds(), "start:0 skip:10 train:10 timers:10 eval:10 memory:10 checkpoint:10 stop:10");

  const std::string console = read_file(folder_.path() / "console.log");
  EXPECT_EQ(console.find("p 1 | 1 rank on a | "), 0u) << console;
  EXPECT_NE(
      console.find("\nfree text\n skipped the data of iterations 10 to 12 (24 samples) due to "
                   "train.skip\n iteration       10/      20 | "),
      std::string::npos);
  EXPECT_NE(console.find("\n validation loss at iteration 10 | "), std::string::npos);
  EXPECT_NE(console.find("\nstopped after iteration 10: finished (exit code 0)\n"),
            std::string::npos);

  ASSERT_EQ(event_files().size(), 1u);
  std::map<std::string, float> values;
  for (const DecodedEvent& event : decode_event_file(read_file(event_files()[0]))) {
    if (!event.value) continue;
    EXPECT_EQ(event.step, 10);
    EXPECT_TRUE(values.emplace(event.tag, *event.value).second) << event.tag << " twice";
  }
  EXPECT_EQ(values.size(), 19u);
  EXPECT_EQ(values.at("timers/optimizer_ms"), 4.0f);
  EXPECT_EQ(values.at("train/loss"), 2.5f);
  EXPECT_EQ(values.at("train/learning_rate"), 0.5f);
  EXPECT_EQ(values.at("train/mfu"), 0.25f);
  EXPECT_EQ(values.at("valid/loss"), 0.0f);
  EXPECT_EQ(values.at("valid/perplexity"), 1.0f);
  EXPECT_EQ(values.at("memory/peak_bytes"), 1048576.0f);
  EXPECT_EQ(values.at("checkpoint/seconds"), 2.0f);
}

TEST_F(ReporterTest, ARestartCutsBackAndContinues) {
  {
    Reporter reporter(fresh_);
    reporter.on(StartEvent{});
    for (int i = 5; i <= 15; i += 5) reporter.on(TrainEvent{.iteration = i});
  }
  ReporterOptions again = fresh_;
  again.restart = 10;
  {
    Reporter reporter(again);
    reporter.on(StartEvent{.iteration = 10});
    reporter.on(TrainEvent{.iteration = 15});
  }
  EXPECT_EQ(kinds(), "start:0 train:5 train:10 start:10 train:15");
  const std::string console = read_file(folder_.path() / "console.log");
  EXPECT_EQ(std::count(console.begin(), console.end(), '\n'), 8) << "console.log keeps everything";
}

TEST_F(ReporterTest, TellsTensorBoardWhereRunsBegin) {
  ReporterOptions options = fresh_;
  for (const auto dialect :
       {deck::TensorboardDialect::trireme, deck::TensorboardDialect::megatron}) {
    options.dialect = dialect;
    options.restart.reset();
    Reporter{options};
    options.restart = 10;
    Reporter{options};
  }
  std::vector<std::int64_t> beginnings;
  for (const auto& file : event_files())
    for (const DecodedEvent& event : decode_event_file(read_file(file)))
      if (event.session_status == 1) beginnings.push_back(event.step);
  // Of curves over samples and tokens an iteration's number says nothing.
  EXPECT_EQ(beginnings, (std::vector<std::int64_t>{0, 11, 0}));
}

TEST_F(ReporterTest, AFreshRunBeginsAnew) {
  Reporter(fresh_).on(TrainEvent{.iteration = 5});
  Reporter(fresh_).on(TrainEvent{.iteration = 1});
  EXPECT_EQ(kinds(), "train:1");
}

TEST_F(ReporterTest, WritesTheTagsOfItsDialect) {
  ReporterOptions options = fresh_;
  options.dialect = deck::TensorboardDialect::bigscience;
  {
    Reporter reporter(options);
    reporter.on(StartEvent{.layout = {.data = 2}});
    reporter.on(EvalEvent{.iteration = 5, .consumed_samples = 40, .split = "valid", .loss = 1});
  }
  std::map<std::string, std::int64_t> steps;
  for (const DecodedEvent& event : decode_event_file(read_file(event_files()[0])))
    if (event.value) steps[event.tag] = event.step;
  EXPECT_EQ(steps.at("iteration-time/world_size"), 1);
  EXPECT_EQ(steps.at("lm-loss-validation/lm loss validation"), 5);
  EXPECT_EQ(steps.at("lm-loss-validation/lm loss validation vs samples"), 40);
}

TEST_F(ReporterTest, AFullDiskIsAWarningAndLinesComeLater) {
  ReporterOptions options = fresh_;
  options.flush_every = 1;
  Reporter reporter(options);
  reporter.on(StartEvent{});
  const auto metrics = folder_.path() / "metrics.jsonl";
  testing::internal::CaptureStderr();
  {
    // Part of the next line fits.
    const FileSizeLimit limit(std::filesystem::file_size(metrics) + 10);
    for (const int iteration : {1, 2, 3}) reporter.on(TrainEvent{.iteration = iteration});
  }
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_EQ(warning, "warning: cannot write '" + metrics.string() +
                         "': File too large; training continues, and writes it later\n");
  reporter.on(TrainEvent{.iteration = 4});
  EXPECT_EQ(kinds(), "start:0 train:1 train:2 train:3 train:4");
  EXPECT_NE(read_file(folder_.path() / "console.log").find(" iteration        3/"),
            std::string::npos);
  int points = 0;
  for (const DecodedEvent& event : decode_event_file(read_file(event_files()[0])))
    points += event.value && event.tag == "train/loss";
  EXPECT_EQ(points, 4);
  const FileSizeLimit limit(1);
  testing::internal::CaptureStderr();
  EXPECT_THROW(reporter.on(StopEvent{}), IoError) << "what is not written by the end is an error";
  testing::internal::GetCapturedStderr();
}

TEST_F(ReporterTest, ARewindOnAFullDiskIsAWarning) {
  ReporterOptions options = fresh_;
  options.flush_every = 1;
  Reporter reporter(options);
  reporter.on(StartEvent{});
  for (const int iteration : {1, 2, 3}) reporter.on(TrainEvent{.iteration = iteration});
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit limit(std::filesystem::file_size(folder_.path() / "metrics.jsonl") + 10);
    reporter.on(TrainEvent{.iteration = 4});
    reporter.on(RewindEvent{.iteration = 2, .from = 4});
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("training continues, and writes it later"),
            std::string::npos);
  reporter.on(TrainEvent{.iteration = 3});
  EXPECT_EQ(kinds(), "start:0 train:1 train:2 train:3 train:4 rewind:2 train:3");
}

TEST_F(ReporterTest, OneFileThatCannotBeWrittenIsOneWarning) {
  ReporterOptions options = fresh_;
  options.flush_every = 1;
  Reporter reporter(options);
  reporter.on(StartEvent{});
  for (int i = 0; i < 100; ++i) reporter.on(TrainEvent{.iteration = i});  // the events take most
  const std::size_t size = std::filesystem::file_size(event_files()[0]);
  ASSERT_GT(size, std::filesystem::file_size(folder_.path() / "metrics.jsonl") + 10'000);
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit limit(size + 10);
    for (const int iteration : {101, 102, 103}) reporter.on(TrainEvent{.iteration = iteration});
  }
  EXPECT_EQ(std::ranges::count(testing::internal::GetCapturedStderr(), '\n'), 1);
}

TEST_F(ReporterTest, WritesNoEventFileWhenNotAsked) {
  ReporterOptions options = fresh_;
  options.tensorboard = false;
  Reporter(options).on(TrainEvent{.iteration = 1});
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "tensorboard"));
}

}  // namespace
}  // namespace trireme::report
