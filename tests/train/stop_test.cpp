#include "train/run_state.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "../scratch_folder.hpp"
#include "comm/communicator.hpp"
#include "decks.hpp"

namespace trireme::train {
namespace {

// A run in batches of 4 samples, alone, whose iterations and saves take as long as told.
class TimedRun {
 public:
  explicit TimedRun(const std::vector<std::string>& overrides,
                    std::optional<double> time_limit = {})
      : deck_(tiny_deck("run", overrides)),
        stops_(deck_, batches_, world_, watch_, time_limit, 0) {}

  StopConditions& stops() { return stops_; }
  /// After `iteration` of a run of 10.
  StopReason after(std::int64_t iteration, ExitCode data = ExitCode::success) {
    return stops_.after_step(batches_.advance({}, iteration - 1), batches_.advance({}, iteration),
                             batches_.advance({}, 10), data);
  }

 private:
  deck::Deck deck_;
  deck::BatchSizes batches_{deck_.batch};
  comm::SerialCommunicator world_;
  Stopwatch watch_;
  StopConditions stops_;
};

TEST(StopConditions, BadDataEndsTheRunWithItsOwnCode) {
  TimedRun run({});
  EXPECT_EQ(run.after(3, ExitCode::io), StopReason::unreadable_data);
  EXPECT_EQ(run.after(3, ExitCode::data), StopReason::bad_data);
  EXPECT_EQ(exit_code(StopReason::unreadable_data), ExitCode::io);
  EXPECT_EQ(exit_code(StopReason::bad_data), ExitCode::data);
}

TEST(StopConditions, ARunContinuesWithoutAReasonToStop) {
  TimedRun run({});
  EXPECT_EQ(run.stops().before_start(), StopReason::none);
  EXPECT_EQ(run.after(3), StopReason::none);
}

TEST(StepLimit, IsLearnedFromTheUsualIteration) {
  StepLimit limit;
  for (const double seconds : {100.0, 50.0, 4.0, 4.0}) {
    limit.note(seconds, 8);
    EXPECT_EQ(limit.seconds(8), std::nullopt);
  }
  limit.note(30.0, 8);  // unusual
  EXPECT_EQ(limit.seconds(8), 20.0);
  EXPECT_EQ(limit.seconds(16), 40.0) << "a larger batch takes longer";
  for (int i = 0; i < 20; ++i) limit.note(0.1, 8);
  EXPECT_EQ(limit.seconds(8), 10.0);
}

TEST(StopConditions, TheTimeLimitHasRoomForAnIterationAndASave) {
  TimedRun run({"evaluate.at_end=false"}, 1000.0);
  run.stops().note_step(100.0);
  run.stops().note_save(850.0);
  EXPECT_EQ(run.after(3), StopReason::none);
  run.stops().note_save(950.0);
  EXPECT_EQ(run.after(3), StopReason::time_limit);
}

TEST(StopConditions, TheTimeLimitHasRoomForTheTasks) {
  TimedRun run({"evaluate.at_end=false"}, 1000.0);
  run.stops().note_save(0.0);
  run.stops().note_step(900.0);  // in which algorithms are chosen
  run.stops().note_step(4.0);    // of 4 samples
  const deck::Length every{.value = 4, .unit = deck::Unit::iterations};
  run.stops().note_task(every, 100);
  EXPECT_EQ(run.after(3), StopReason::none);
  run.stops().note_task(every, 200);
  EXPECT_EQ(run.after(2), StopReason::none);
  EXPECT_EQ(run.after(3), StopReason::time_limit);
  EXPECT_EQ(run.after(9), StopReason::none) << "evaluate.at_end = false";
}

TEST(StopConditions, TheTimeLimitCountsTheLongestIteration) {
  TimedRun run({"evaluate.at_end=false"}, 1000.0);
  run.stops().note_save(0.0);
  run.stops().note_step(1001.0);
  run.stops().note_step(1.0);
  EXPECT_EQ(run.after(3), StopReason::time_limit);
}

TEST(StopConditions, TheTimeLimitHasRoomForAnEvaluation) {
  // A batch of an evaluation counts as much as a step: 1 + 20 steps where one is due.
  TimedRun run({"data.split=9,1", "evaluate.every=4", "evaluate.iterations=20"}, 1000.0);
  run.stops().note_save(0.0);
  run.stops().note_step(50.0);
  EXPECT_EQ(run.after(2), StopReason::none);
  EXPECT_EQ(run.after(3), StopReason::time_limit);
  EXPECT_EQ(run.after(4), StopReason::none);
}

TEST(StopConditions, IterationsAndDurationsOfTheDeck) {
  TimedRun every_third({"train.exit_interval=3"});
  EXPECT_EQ(every_third.after(2), StopReason::none);
  EXPECT_EQ(every_third.after(3), StopReason::exit_interval);
  TimedRun short_run({"train.exit_duration=0.001 seconds"});
  while (short_run.after(1) == StopReason::none) {
  }
  EXPECT_EQ(short_run.after(1), StopReason::exit_duration);
}

TEST(StopConditions, AKillSwitchStopsARunAndKeepsItFromStarting) {
  const ScratchFolder folder;
  const std::filesystem::path kill_switch = folder.path() / "stop";
  TimedRun run({"train.kill_switch=" + kill_switch.string()});
  EXPECT_EQ(run.stops().before_start(), StopReason::none);
  EXPECT_EQ(run.after(1), StopReason::none);
  std::ofstream(kill_switch).put('\n');
  EXPECT_EQ(run.stops().before_start(), StopReason::kill_switch);
  EXPECT_EQ(run.after(1), StopReason::kill_switch);
}

TEST(StopConditions, TheLastIterationIsNoEarlyStop) {
  TimedRun run({"train.exit_interval=5"}, 1.0);
  run.stops().note_step(100.0);
  EXPECT_EQ(run.after(10), StopReason::none);
}

}  // namespace
}  // namespace trireme::train
