#include "report/metrics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Perplexity, IsCutAtTwentyAndKeepsNan) {
  EXPECT_DOUBLE_EQ(perplexity(1), std::exp(1.0));
  EXPECT_DOUBLE_EQ(perplexity(50), std::exp(20.0));
  EXPECT_TRUE(std::isnan(perplexity(kNan)));
}

TEST(JsonLine, Start) {
  EXPECT_EQ(
      json_line(StartEvent{.program = "trireme-pretrain",
                           .version = "0.1.0",
                           .command = "trireme-pretrain d.yaml a=1",
                           .directory = "/home/a",
                           .deck = "d.yaml",
                           .overrides = {"a=1"},
                           .device = "host",
                           .length = {10, 80},
                           .layout = {2, 2, 1},
                           .partition = "3-1",
                           .hosts = {"a", "b"},
                           .rank_hosts = {0, 1, 1, 0},
                           .parameters = 1234,
                           .model = {.layers = 4,
                                     .hidden = 32,
                                     .sequence = 16,
                                     .vocab = 61,
                                     .parameters_without_embeddings = 1000,
                                     .flops_per_token = 2.5e5,
                                     .flops_formula = "6 P",
                                     .recomputes = true},
                           .iteration = 7},
                1700000000.12345),
      R"({"kind":"start","time":1700000000.123,"program":"trireme-pretrain","version":"0.1.0",)"
      R"("command":"trireme-pretrain d.yaml a=1","directory":"/home/a","deck":"d.yaml",)"
      R"("overrides":["a=1"],"device":"host","length":{"iterations":10,"samples":80},)"
      R"("layout":{"tensor":2,"pipeline":2,"data":1,"partition":"3-1"},)"
      R"("hosts":["a","b"],"rank_hosts":[0,1,1,0],"parameters":1234,)"
      R"("model":{"layers":4,"hidden":32,"sequence":16,"vocab":61,)"
      R"("parameters_without_embeddings":1000,"flops_per_token":250000.0,"flops_formula":"6 P","recomputes":true},)"
      R"("iteration":7})");
}

TEST(JsonLine, Train) {
  EXPECT_EQ(json_line(TrainEvent{.iteration = 30,
                                 .consumed_samples = 1920,
                                 .consumed_tokens = 1966080,
                                 .loss = 10.17721,
                                 .grad_norm = 16.666,
                                 .learning_rate = 7.03125e-7,
                                 .loss_scale = 262144,
                                 .global_batch = 64,
                                 .ms = 1423.8,
                                 .tokens_per_second = 46028.5,
                                 .model_tflops_per_rank = 38.5,
                                 .mfu = 0.25,
                                 .skipped = 1,
                                 .nan = 2},
                      0.5),
            R"({"kind":"train","time":0.5,"iteration":30,"consumed_samples":1920,)"
            R"("consumed_tokens":1966080,"loss":10.17721,"grad_norm":16.666,)"
            R"("learning_rate":7.03125e-07,"loss_scale":262144.0,"global_batch":64,"ms":1423.8,)"
            R"("tokens_per_second":46028.5,"model_tflops_per_rank":38.5,"mfu":0.25,"skipped":1,)"
            R"("nan":2})");
}

TEST(JsonLine, TrainHasNormsWhereTheyAreLogged) {
  const std::string line =
      json_line(TrainEvent{.grad_norm = 1, .parameter_norm = 2.5, .gradient_zeros = 3}, 0);
  EXPECT_NE(line.find(R"("grad_norm":1.0,"parameter_norm":2.5,"gradient_zeros":3,)"),
            std::string::npos)
      << line;
}

TEST(JsonLine, HasTheSentenceTaskWhereThereIsOne) {
  const std::string train = json_line(TrainEvent{.loss = 2, .sentence_loss = 0.5}, 0);
  EXPECT_NE(train.find(R"("loss":2.0,"sentence_loss":0.5,"grad_norm")"), std::string::npos)
      << train;
  const std::string eval = json_line(
      EvalEvent{.split = "valid", .loss = 0, .sentence_loss = 0.5, .sentence_accuracy = 0.75}, 0);
  EXPECT_NE(eval.find(R"("perplexity":1.0,"sentence_loss":0.5,"sentence_accuracy":0.75,)"),
            std::string::npos)
      << eval;
}

TEST(JsonLine, OtherKinds) {
  EXPECT_EQ(json_line(SkipEvent{.iteration = 5, .first = 5, .last = 8, .samples = 32}, 1),
            R"({"kind":"skip","time":1.0,"iteration":5,"first":5,"last":8,"samples":32})");
  EXPECT_EQ(json_line(EvalEvent{.iteration = 7,
                                .consumed_samples = 14,
                                .consumed_tokens = 140,
                                .split = "valid",
                                .loss = 0,
                                .at_end = true},
                      1),
            R"({"kind":"eval","time":1.0,"iteration":7,"consumed_samples":14,)"
            R"("consumed_tokens":140,"split":"valid","loss":0.0,"perplexity":1.0,"at_end":true})");
  EXPECT_EQ(json_line(TimersEvent{7, {{"forward-compute", 1.5, 2}, {"optimizer", 3, 4}}}, 1),
            R"({"kind":"timers","time":1.0,"iteration":7,"timers":{)"
            R"("forward-compute":{"min_ms":1.5,"max_ms":2.0},)"
            R"("optimizer":{"min_ms":3.0,"max_ms":4.0}}})");
  EXPECT_EQ(json_line(TimersEvent{7, {{"optimizer", 3, 4}}, {1.5, 2}}, 1),
            R"({"kind":"timers","time":1.0,"iteration":7,"timers":{)"
            R"("optimizer":{"min_ms":3.0,"max_ms":4.0}},"rank_ms":[1.5,2.0]})");
  EXPECT_EQ(json_line(GpuEvent{7, {{"a", 3, 98, 1024, 2048, 61, kNan}}}, 1),
            R"({"kind":"gpu","time":1.0,"iteration":7,"gpus":[{"host":"a","index":3,)"
            R"("utilisation":98.0,"memory":1024.0,"memory_total":2048.0,"temperature":61.0,)"
            R"("power":null}]})");
  EXPECT_EQ(json_line(CheckpointEvent{7, "checkpoints/x.h5", 4096, 1.5}, 1),
            R"({"kind":"checkpoint","time":1.0,"iteration":7,"path":"checkpoints/x.h5",)"
            R"("bytes":4096,"seconds":1.5})");
  EXPECT_EQ(json_line(CheckpointEvent{7, "x.h5", 4096, 1.5, 0.25}, 1),
            R"({"kind":"checkpoint","time":1.0,"iteration":7,"path":"x.h5","bytes":4096,)"
            R"("seconds":1.5,"stall_seconds":0.25})");
  EXPECT_EQ(json_line(CheckpointEvent{7, "x.h5", 4096, 1.5, 0.25, 0.125}, 1),
            R"({"kind":"checkpoint","time":1.0,"iteration":7,"path":"x.h5","bytes":4096,)"
            R"("seconds":1.5,"stall_seconds":0.25,"update_wait_seconds":0.125})");
  EXPECT_EQ(json_line(MemoryEvent{1, 30, 20, 25, 0, {{2, 3, 4, 5, 6}}}, 1),
            R"({"kind":"memory","time":1.0,"iteration":1,"planned_bytes":30,"resident_bytes":20,)"
            R"("peak_bytes":25,"ranks":[{"rank":2,"allocated":3,"max_allocated":4,"reserved":5,)"
            R"("max_reserved":6}]})");
  EXPECT_EQ(json_line(StopEvent{"time limit", 12, 75}, 1),
            R"({"kind":"stop","time":1.0,"reason":"time limit","iteration":12,"exit_code":75})");
}

TEST(JsonLine, IsValidJsonWhateverTheValues) {
  const auto train = nlohmann::json::parse(json_line(
      TrainEvent{.loss = kNan, .grad_norm = std::numeric_limits<double>::infinity()}, kNan));
  EXPECT_TRUE(train["loss"].is_null());
  EXPECT_TRUE(train["grad_norm"].is_null());
  EXPECT_TRUE(train["mfu"].is_null());
  const std::string line = json_line(StopEvent{"a\n\"b\" \xff", 0, 0}, 0);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(line)["reason"], "a\n\"b\" \xEF\xBF\xBD");
}

TEST(JsonLine, LossesSurviveExactly) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const double loss =
        std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 80) - 100);
    const auto json =
        nlohmann::json::parse(json_line(EvalEvent{.split = "valid", .loss = loss}, 0));
    EXPECT_EQ(json["loss"].get<double>(), loss);
  }
}

TEST(FinishedAt, AStopForAnotherReasonOrElsewhereIsNone) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "metrics.jsonl";
  EXPECT_FALSE(finished_at(path, 20));
  const auto stop = [](const char* reason, std::int64_t iteration) {
    return json_line(StopEvent{.reason = reason, .iteration = iteration}, 0) + "\n";
  };
  write_file_atomically(path, stop("a signal asked for it", 20) + stop("finished", 10) +
                                  json_line(StartEvent{.deck = "\"finished\""}, 0) + "\n");
  EXPECT_FALSE(finished_at(path, 20));
  EXPECT_TRUE(finished_at(path, 10));
}

class TruncateTest : public testing::Test {
 protected:
  /// The file after truncation of `content`.
  std::string truncated(const std::string& content, std::int64_t iteration) {
    write_file_atomically(path_, content);
    truncate_metrics_after(path_, iteration);
    return read_file(path_);
  }

  const ScratchFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "metrics.jsonl";
  const std::string start_ = json_line(StartEvent{}, 0) + "\n";
  const std::string train10_ = json_line(TrainEvent{.iteration = 10}, 0) + "\n";
  const std::string save10_ = json_line(CheckpointEvent{.iteration = 10}, 0) + "\n";
  const std::string train20_ = json_line(TrainEvent{.iteration = 20}, 0) + "\n";
};

TEST_F(TruncateTest, DropsWhatCameAfterTheCheckpoint) {
  EXPECT_EQ(truncated(start_ + train10_ + save10_ + train20_, 10), start_ + train10_ + save10_);
  EXPECT_EQ(truncated(start_ + train10_ + save10_ + train20_, 15), start_ + train10_ + save10_);
  EXPECT_EQ(truncated(start_ + train10_ + save10_ + train20_, 9), start_);
  EXPECT_EQ(truncated(start_ + train10_ + train20_ + start_ + save10_, 10), start_ + train10_);
}

TEST_F(TruncateTest, KeepsAFileWithNothingToDrop) {
  EXPECT_EQ(truncated(start_ + train10_, 10), start_ + train10_);
  EXPECT_EQ(truncated("", 10), "");
}

TEST_F(TruncateTest, DropsAHalfWrittenLastLineWhereverItEnds) {
  for (std::size_t cut = 0; cut < train10_.size(); ++cut)
    EXPECT_EQ(truncated(start_ + train10_.substr(0, cut), 10), start_);
  EXPECT_EQ(truncated(start_ + std::string(100, '\0'), 10), start_);
}

TEST_F(TruncateTest, NamesABrokenLine) {
  try {
    truncated(start_ + "{\"kind\":\n" + train10_, 10);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.what(), path_.string() +
                                ":2: not a JSON object; move the file away to restart "
                                "without it");
  }
  EXPECT_EQ(truncated(start_ + train20_ + "nonsense\n", 10), start_) << "dropped unread";
}

TEST_F(TruncateTest, LeavesAnAbsentFileAbsent) {
  truncate_metrics_after(path_, 10);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TruncateTest, NeverCrashesOnMutatedFiles) {
  std::mt19937 random(2);
  const std::string good = start_ + train10_ + save10_ + train20_;
  for (int i = 0; i < 2000; ++i) {
    std::string content = good;
    for (int change = 0; change < 3; ++change)
      content[random() % content.size()] = static_cast<char>(random());
    try {
      EXPECT_LE(truncated(content, 10).size(), content.size());
    } catch (const DataError&) {
      EXPECT_EQ(read_file(path_), content);
    }
  }
}

// ---------------------------------------------------------------------------- goodput

/// A start at time 100 that resumes from iteration 10, trains to 16 in two intervals of two and
/// four iterations, saves 12 in the background and is killed.
std::string killed_start() {
  return R"({"kind":"start","time":100.0,"iteration":10})"
         "\n"
         R"({"kind":"train","time":107.0,"iteration":12,"ms":1000.0})"
         "\n"
         R"({"kind":"train","time":111.0,"iteration":16,"ms":1000.0})"
         "\n"
         R"({"kind":"checkpoint","time":112.0,"iteration":12,"seconds":4.0,"stall_seconds":0.25})"
         "\n{\"kind\":\"tra";
}

TEST(Goodput, DividesAStartIntoUsefulAndLostTime) {
  const auto start = last_start(killed_start(), std::nullopt);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->reached, 16);
  EXPECT_EQ(start->lost_iterations, 4);
  EXPECT_DOUBLE_EQ(start->start_up, 5.0);
  EXPECT_DOUBLE_EQ(start->useful, 2.0);
  EXPECT_DOUBLE_EQ(start->lost, 4.0);
  EXPECT_DOUBLE_EQ(start->checkpoints, 0.25);
  EXPECT_EQ(start->cause, "killed, or lost a rank");
  EXPECT_EQ(last_start(killed_start(), 14)->lost_iterations, 2) << "it resumed from another one";
  EXPECT_FALSE(last_start("", std::nullopt));
}

TEST(Goodput, CountsNoSecondTwice) {
  // The save of iteration 2 is published before the first training line. Training waits for it
  // 0.25 s after the iteration and 0.5 s in the next update, and 0.25 s in the update of iteration
  // 14: 19.25 s = 5 + 0.25 + 10 + 4.
  const std::string text =
      R"({"kind":"start","time":100.0,"iteration":0})"
      "\n"
      R"({"kind":"checkpoint","time":109.0,"iteration":2,"seconds":3.0,"stall_seconds":0.75,)"
      R"("update_wait_seconds":0.5})"
      "\n"
      R"({"kind":"train","time":115.25,"iteration":10,"ms":1000.0})"
      "\n"
      R"({"kind":"train","time":119.25,"iteration":14,"ms":1000.0})"
      "\n"
      R"({"kind":"checkpoint","time":119.25,"iteration":13,"seconds":1.0,"stall_seconds":0.25,)"
      R"("update_wait_seconds":0.25})"
      "\n";
  const auto start = last_start(text, 14);
  ASSERT_TRUE(start);
  EXPECT_DOUBLE_EQ(start->start_up, 5.0);
  EXPECT_DOUBLE_EQ(start->checkpoints, 1.0);
  EXPECT_DOUBLE_EQ(start->useful, 13.25) << "14 s, of which the last wait is a checkpoint's";
}

TEST(Goodput, ARestartRecordsWhatItCuts) {
  const ScratchFolder scratch;
  std::ofstream(scratch.path() / "metrics.jsonl") << killed_start();
  record_last_start(scratch.path(), 12);
  std::ofstream(scratch.path() / "metrics.jsonl")
      << R"({"kind":"start","time":120.0,"iteration":12})"
         "\n"
         R"({"kind":"train","time":132.0,"iteration":20,"ms":1000.0})"
         "\n"
         R"({"kind":"checkpoint","time":132.0,"iteration":20,"seconds":0.0})"
         "\n"
         R"({"kind":"stop","time":132.0,"reason":"finished","iteration":20,"exit_code":0})"
         "\n";
  const std::vector<RunStart> starts = read_starts(scratch.path());
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[0].lost_iterations, 4);
  EXPECT_EQ(starts[1].cause, "finished");
  EXPECT_EQ(goodput_line(starts),
            "goodput 31.2 % of 32s in 2 starts: useful 10s, lost 4s (4 iterations), start-up 9s, "
            "checkpoints 0s, between starts 8s, other 1s");
}

}  // namespace
}  // namespace trireme::report
