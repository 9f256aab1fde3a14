#include "report/follow/follower.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "deck/load.hpp"

namespace trireme::report {
namespace {

/// A run that began at 1000 and since 1010 writes a line every 10 seconds.
RunState running(int lines = 5) {
  RunState run;
  run.take(json_line(StartEvent{.device = "cuda", .layout = {.data = 2}, .hosts = {"a"}}, 1000));
  for (int i = 1; i <= lines; ++i)
    run.take(json_line(TrainEvent{.iteration = i, .ms = 1e4}, 1000 + 10 * i));
  return run;
}

void expect(const Verdict& verdict, Judgement judgement, const std::string& reason) {
  EXPECT_EQ(verdict.judgement, judgement) << verdict.reason;
  EXPECT_NE(verdict.reason.find(reason), std::string::npos) << verdict.reason;
}

TEST(IsRunning, WhileStepsCome) {
  expect(is_running(running(), {.now = 1060, .lock = Lock::held}), Judgement::well,
         "last line 10s ago, usual interval 10s");
  expect(is_running(running(), {.now = 990}), Judgement::well, "0 s ago");  // another clock
}

TEST(IsRunning, StallsAfterFiveTimesTheMedian) {
  const RunState run = running();
  expect(is_running(run, {.now = 1099, .lock = Lock::held}), Judgement::well, "");
  expect(is_running(run, {.now = 1101, .lock = Lock::held}), Judgement::bad,
         "stalled: no line for 51s, usual interval 10s; the last training line is of iteration 5");
}

TEST(IsRunning, AfterOneLineStallsByItsSteps) {
  const RunState run = running(1);
  expect(is_running(run, {.now = 1059}), Judgement::well, "");
  expect(is_running(run, {.now = 1061}), Judgement::bad, "stalled");
}

TEST(IsRunning, PausesForWhatPausedBefore) {
  RunState run = running();
  run.take(json_line(CheckpointEvent{.iteration = 5}, 1090));  // 40 seconds
  run.take(json_line(TrainEvent{.iteration = 6, .ms = 1e4}, 1100));
  expect(is_running(run, {.now = 1179}), Judgement::well, "");
  expect(is_running(run, {.now = 1181}), Judgement::bad, "stalled");
}

TEST(IsRunning, FastRunsMayBeSilentForAMoment) {
  RunState run;
  run.take(json_line(StartEvent{}, 1000));
  for (int i = 1; i <= 5; ++i) run.take(json_line(TrainEvent{.iteration = i}, 1000 + 0.01 * i));
  expect(is_running(run, {.now = 1004}), Judgement::well, "");
  expect(is_running(run, {.now = 1006}), Judgement::bad, "stalled");
}

TEST(IsRunning, BeforeTheFirstStep) {
  expect(is_running(running(0), {.now = 1030, .lock = Lock::held}), Judgement::well,
         "no training line yet, 30s after the start");
  expect(is_running(running(0), {.now = 1700, .lock = Lock::held}), Judgement::bad,
         "no training line yet");
  expect(is_running({}, {.now = 1700}), Judgement::bad, "no start line");
}

TEST(IsRunning, EndsWellOrNot) {
  RunState run = running();
  run.take(json_line(StopEvent{"finished", 5, 0}, 1050));
  expect(is_running(run, {.now = 9999, .lock = Lock::free}), Judgement::well,
         "finished: iteration 5, exit code 0");
  EXPECT_TRUE(has_ended(run, {}));
  run.take(json_line(StopEvent{"the time limit is near", 5, 75}, 1050));
  expect(is_running(run, {.now = 1051}), Judgement::bad,
         "exit code 75; the same command resumes the run");
  const ProcessState queued{.job = JobState{"12", "PENDING", "BeginTime"}};
  expect(is_running(run, queued), Judgement::bad, "Slurm's job 12 is PENDING (BeginTime)");
  EXPECT_FALSE(has_ended(run, queued));
}

TEST(IsRunning, NotWithoutAFiniteLoss) {
  RunState run = running();
  run.take(json_line(TrainEvent{.iteration = 6, .loss = std::nan(""), .ms = 1e4}, 1060));
  expect(is_running(run, {.now = 1061, .lock = Lock::held}), Judgement::bad,
         "; but the loss of iteration 6 is not finite");
  run.take(json_line(StopEvent{.reason = "finished", .iteration = 6}, 1062));
  expect(is_running(run, {.now = 1063, .lock = Lock::free}), Judgement::bad,
         "finished: iteration 6, exit code 0; but the loss of iteration 6 is not finite");
}

TEST(IsRunning, KilledRunsLeaveTheirLock) {
  const ProcessState process{.now = 1055, .lock = Lock::free};
  expect(is_running(running(), process), Judgement::bad, "killed, or failed without a message");
  EXPECT_TRUE(has_ended(running(), process));
  EXPECT_FALSE(has_ended(running(), {.now = 1055, .lock = Lock::held}));
}

TEST(HasEnded, WithItsJob) {
  const auto ended = [](const RunState& run, const char* state, Lock lock = Lock::unknown) {
    return has_ended(run, {.now = 1055, .lock = lock, .job = JobState{"12", state, "None"}});
  };
  RunState run = running();
  for (const char* state :
       {"CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}) {
    EXPECT_TRUE(ended(run, state)) << state;
    EXPECT_TRUE(ended({}, state)) << "before its first line: " << state;
  }
  const std::vector<const char*> there = {"RUNNING",     "COMPLETING", "PENDING",
                                          "CONFIGURING", "REQUEUED",   "SUSPENDED"};
  for (const char* state : there) {
    EXPECT_FALSE(ended(run, state)) << state;
    EXPECT_FALSE(ended(run, state, Lock::free)) << "its job may start it again: " << state;
  }
  run.take(json_line(StopEvent{"a signal asked for it", 5, 75}, 1050));
  for (const char* state : there) EXPECT_FALSE(ended(run, state)) << state;
  EXPECT_TRUE(ended(run, "FAILED"));
  run.take(json_line(StopEvent{"finished", 5, 0}, 1050));
  EXPECT_TRUE(ended(run, "RUNNING"));
  EXPECT_FALSE(ended(run, "PENDING"));
}

TEST(IsRunning, SlurmsWordCounts) {
  expect(is_running(running(), {.now = 1055, .job = JobState{"12", "RUNNING", "None"}}),
         Judgement::well, "");
  expect(is_running(running(), {.now = 1055, .job = JobState{"12", "NODE_FAIL", "NodeDown"}}),
         Judgement::bad, "Slurm's job 12 is NODE_FAIL (NodeDown)");
}

TEST(AreGpusBusy, NamesTheIdleOnes) {
  RunState run = running();
  expect(are_gpus_busy(run), Judgement::unknown, "log.gpu_every");
  run.gpus = {{.host = "a", .index = 0, .utilisation = 98},
              {.host = "a", .index = 1, .utilisation = std::nan("")}};
  expect(are_gpus_busy(run), Judgement::well, "lowest utilisation 98 %");
  run.gpus.push_back({.host = "b", .index = 3, .utilisation = 12});
  expect(are_gpus_busy(run), Judgement::bad, "idle: GPU 3 of b 12 %");
  run.start.device = "host";
  expect(are_gpus_busy(run), Judgement::well, "no GPU is used");
}

TEST(HasNoError, GoesByTheOutput) {
  RankOutput output;
  RunState run;
  expect(has_no_error(output, run), Judgement::unknown, "no output to read");
  output.take("a.err", "[rank 0] warning: slow");
  expect(has_no_error(output, run), Judgement::well, "1 file read, 1 warning");
  run.stop = StopEvent{.reason = "the loss is not finite", .iteration = 3, .exit_code = 76};
  expect(has_no_error(output, run), Judgement::bad, "exit code 76: the loss is not finite");
  run.stop->exit_code = 75;
  expect(has_no_error(output, run), Judgement::well, "1 file read");
  output.take("a.err", "[rank 1] Segmentation fault");
  expect(has_no_error(output, run), Judgement::bad,
         "1 error line (1 file read, 1 warning), the first: a.err: rank 1: Segmentation fault");
}

deck::Deck deck_of(const std::string& more) {
  return deck::parse(
      "model: {layers: 4, hidden: 32, heads: 4, sequence: 32, vocab: 61}\n"
      "batch: {micro: 1, global: 8}\nschedule: {peak: 1e-3}\ntrain: {iterations: 5}\n" +
          more,
      "d.yaml", {}, {.need_data = false});
}

TEST(IsDeckAsAsked, ComparesKeyByKey) {
  deck::Deck effective = deck_of("");
  effective.parallel.data = 2;
  expect(is_deck_as_asked(effective, deck_of(""), "d.yaml"), Judgement::well, "as in d.yaml");
  expect(is_deck_as_asked(effective, deck_of("optimizer: {clip: 2}\n"), "d.yaml"), Judgement::bad,
         "not as in d.yaml: optimizer.clip is 1, requested 2");
  expect(is_deck_as_asked(effective, deck_of("parallel: {data: 4}\n"), "d.yaml"), Judgement::bad,
         "parallel.data is 2, requested 4");
}

TEST(Stragglers, AreComparedWithTheirStage) {
  RunState run = running();
  run.start.layout = {.tensor = 1, .pipeline = 2, .data = 4};
  run.start.hosts = {"a", "b"};
  run.start.rank_hosts = {0, 0, 0, 0, 1, 1, 1, 1};
  run.rank_ms = {100, 101, 99, 100, 200, 205, 198, 300};
  const auto lines = stragglers(run);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "rank 7 on b computes 300.0 ms a step, ranks of its stage 200.0 ms");
  run.rank_ms = {100, 101, 99, 100, 0.2, 0.2, 0.2, 0.9};
  EXPECT_TRUE(stragglers(run).empty()) << "less than a millisecond is noise";
  run.rank_ms = {1, 2, 3};
  EXPECT_TRUE(stragglers(run).empty()) << "of another layout";
}

}  // namespace
}  // namespace trireme::report
