#include "report/follow/follower.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::report {
namespace {

/// A run of 100 iterations of 8 samples of 32 tokens on 2 ranks.
StartEvent start_at(std::int64_t iteration = 0) {
  return {.program = "trireme-pretrain",
          .version = "0.1.0",
          .deck = "d.yaml",
          .overrides = {"a=1"},
          .device = "cuda",
          .length = {100, 800},
          .layout = {.data = 2},
          .hosts = {"a", "b"},
          .rank_hosts = {0, 1},
          .iteration = iteration};
}

TrainEvent train(std::int64_t iteration, double loss) {
  return {.iteration = iteration,
          .consumed_samples = iteration * 8,
          .consumed_tokens = iteration * 8 * 32,
          .loss = loss,
          .ms = 500,
          .tokens_per_second = 512};
}

TEST(RunStateTest, KnowsNothingOfNoLines) {
  const RunState run;
  EXPECT_FALSE(run.typical_interval());
  EXPECT_FALSE(run.seconds_left());
}

TEST(RunStateTest, ARewindMayChangeTheEndOfTheRun) {
  RunState run;
  run.take(json_line(start_at(), 1000));
  run.take(json_line(RewindEvent{.iteration = 4, .from = 9, .length = {120, 960}}, 1006));
  EXPECT_EQ(run.start.length.iterations, 120);
  EXPECT_EQ(run.start.length.samples, 960);
  run.take(R"({"kind":"rewind","iteration":3})");  // of an earlier version
  EXPECT_EQ(run.start.length.samples, 960);
}

TEST(RunStateTest, FollowsARun) {
  RunState run;
  EXPECT_FALSE(run.take(json_line(start_at(), 1000)));
  EXPECT_EQ(run.start.deck, "d.yaml");
  EXPECT_EQ(run.start.overrides, std::vector<std::string>{"a=1"});
  EXPECT_EQ(run.start.layout.data, 2);
  EXPECT_EQ(run.start.rank_hosts, (std::vector<int>{0, 1}));
  EXPECT_FALSE(run.typical_interval());

  EXPECT_TRUE(run.take(json_line(train(10, 3), 1006)));
  EXPECT_DOUBLE_EQ(*run.typical_interval(), 5.0) << "ten steps of 500 ms";
  run.take(json_line(train(20, 2), 1011));
  run.take(json_line(EvalEvent{.iteration = 20, .split = "valid", .loss = 2.5}, 1013));
  run.take(json_line(EvalEvent{.iteration = 20, .split = "test", .loss = 9}, 1014));
  run.take(json_line(CheckpointEvent{.iteration = 20}, 1021));
  TrainEvent last = train(30, 2.25);
  last.skipped = 2;
  last.nan = 1;
  run.take(json_line(last, 1026));
  run.take(json_line(GpuEvent{30, {{"a", 1, 98, 1e9, 2e9, 60, std::nan("")}}}, 1026));
  run.take(json_line(MemoryEvent{.peak_bytes = 7, .gpu_bytes = 9}, 1026));
  run.take(json_line(TimersEvent{.rank_ms = {1, 2}}, 1026));
  run.take(json_line(TimersEvent{}, 1027));

  EXPECT_EQ(run.train->iteration, 30);
  EXPECT_DOUBLE_EQ(*run.best_loss, 2);
  EXPECT_EQ(run.best_iteration, 20);
  EXPECT_DOUBLE_EQ(*run.evaluation->loss, 2.5);
  EXPECT_EQ(run.checkpoint->iteration, 20);
  EXPECT_DOUBLE_EQ(run.longest_pause, 7);
  EXPECT_EQ(run.skipped, 2);
  EXPECT_EQ(run.nan, 1);
  EXPECT_DOUBLE_EQ(*run.typical_interval(), 5.0) << "of 5 and 15 seconds";
  EXPECT_DOUBLE_EQ(*run.seconds_left(), 560.0 / 16.0);
  ASSERT_EQ(run.gpus.size(), 1u);
  EXPECT_EQ(run.gpus[0].host, "a");
  EXPECT_TRUE(std::isnan(run.gpus[0].power));
  EXPECT_DOUBLE_EQ(run.memory, 9);
  EXPECT_EQ(run.rank_ms, (std::vector<double>{1, 2})) << "timers without it leave it";
  EXPECT_EQ(run.last_time, 1027);
  EXPECT_FALSE(run.stop);
}

TEST(RunStateTest, ARestartBeginsItsPaceAnewAndForgetsTheStop) {
  RunState run;
  run.take(json_line(start_at(), 1000));
  run.take(json_line(train(10, 3), 1100));
  run.take(json_line(train(20, 2), 1200));
  run.take(json_line(StopEvent{"a signal asked for it", 20, 75}, 1201));
  EXPECT_EQ(run.stop->exit_code, 75);
  run.take(json_line(start_at(20), 5000));
  EXPECT_FALSE(run.stop);
  EXPECT_EQ(run.starts, 2);
  EXPECT_FALSE(run.typical_interval());
  EXPECT_EQ(run.train->iteration, 20) << "that far it is";
  run.take(json_line(train(24, 2), 5002));
  EXPECT_DOUBLE_EQ(*run.typical_interval(), 2.0) << "four steps of 500 ms";
  run.take(json_line(train(28, 2), 5003));
  EXPECT_DOUBLE_EQ(*run.typical_interval(), 1.0);
}

TEST(RunStateTest, TakesWhatItCanOfLinesOfOtherVersions) {
  RunState run;
  run.take(R"({"kind":"start","time":1,"layout":[2],"hosts":["a",3],"iteration":"none"})");
  EXPECT_EQ(run.starts, 1);
  EXPECT_EQ(run.start.layout.tensor, 1);
  EXPECT_TRUE(run.start.hosts.empty());
  run.take(R"({"kind":"train","time":2,"iteration":5,"loss":"small","ms":null})");
  EXPECT_EQ(run.train->iteration, 5);
  EXPECT_FALSE(run.train->loss);
  EXPECT_FALSE(run.typical_interval());
  EXPECT_FALSE(run.seconds_left());
  run.take(R"({"kind":"flux","time":3})");
  run.take(R"({"kind":"flux","time":4})");
  run.take(R"({"kind":"gpu","gpus":[7,{"index":2}]})");
  ASSERT_EQ(run.gpus.size(), 1u);
  EXPECT_EQ(run.unknown_kinds.at("flux"), 2);
  EXPECT_EQ(run.unreadable, 0);
  for (const char* line : {"", "{\"kind\":\"tra", "[]", "{}", "{\"kind\":3}", "\x80\xff"})
    run.take(line);
  EXPECT_EQ(run.unreadable, 6);
}

}  // namespace
}  // namespace trireme::report
