#include "report/follow/follower.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>

#include "../../message_of.hpp"
#include "../../scratch_folder.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "deck/load.hpp"

namespace trireme::report {
namespace {

const std::string kDeck =
    "model: {layers: 4, hidden: 32, heads: 4, sequence: 32, vocab: 61}\n"
    "batch: {micro: 1, global: 8}\nschedule: {peak: 1e-3}\ntrain: {iterations: 5}\n";

/// A run folder with files as a run leaves them.
class FollowerTest : public testing::Test {
 protected:
  FollowerTest() {
    std::filesystem::create_directory(run_);
    write("d.yaml", kDeck);
    deck::Deck deck = deck::load(folder_.path() / "d.yaml", {}, {.need_data = false});
    deck.parallel.data = 1;
    write("run/deck.yaml", deck::print_deck(deck));
  }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / name, std::ios::app) << text;
  }
  template <typename Event>
  void emit(const Event& event, double time = unix_time()) {
    write("run/metrics.jsonl", json_line(event, time) + "\n");
  }
  void emit_start() {
    emit(StartEvent{.version = "0.1.0",
                    .directory = folder_.path().string(),
                    .deck = "d.yaml",
                    .device = "host",
                    .hosts = {host_name()}});
  }
  Follower follower() { return Follower({.folder = run_, .version = "0.1.0"}); }

  ScratchFolder folder_;
  std::filesystem::path run_ = folder_.path() / "run";
};

TEST_F(FollowerTest, ARunWithoutAStepIsWell) {
  emit_start();
  const Page page = follower().look();
  EXPECT_TRUE(page.well()) << to_text(page, false);
  EXPECT_FALSE(page.ended);
  EXPECT_EQ(page.verdicts[2].judgement, Judgement::unknown) << "there are no files of ranks";
}

TEST_F(FollowerTest, SeesLinesAsTheyCome) {
  emit_start();
  Follower follower = this->follower();
  EXPECT_FALSE(follower.look().run.train);
  emit(TrainEvent{.iteration = 3});
  write("run/metrics.jsonl", R"({"kind":"train","iteration":4)");
  EXPECT_EQ(follower.look().run.train->iteration, 3);
  write("run/metrics.jsonl", R"(,"time":1})"
                             "\n");
  EXPECT_EQ(follower.look().run.train->iteration, 4);
  truncate_metrics_after(run_ / "metrics.jsonl", 3);
  emit(StopEvent{"finished", 3, 0});
  const Page page = follower.look();
  EXPECT_EQ(page.run.train->iteration, 3);
  EXPECT_TRUE(page.ended);
  EXPECT_TRUE(page.well()) << to_text(page, false);
}

TEST_F(FollowerTest, TheLockTellsTheLivingFromTheDead) {
  emit_start();
  emit(TrainEvent{.iteration = 3, .ms = 1e6});
  const int lock = ::open((run_ / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_EQ(follower().look().verdicts[0].judgement, Judgement::well);
  ::close(lock);
  const Page page = follower().look();
  EXPECT_EQ(page.verdicts[0].judgement, Judgement::bad);
  EXPECT_TRUE(page.ended);
}

TEST_F(FollowerTest, ErrorsOfAnyRankAreNamed) {
  emit_start();
  std::filesystem::create_directory(run_ / "ranks");
  write("run/ranks/a.out", "[rank 0] fine\n");
  write("run/ranks/a.err", "[rank 1] warning: slow\n");
  write("run/ranks/a.gpu", "error\n");
  EXPECT_EQ(follower().look().verdicts[2].reason, "2 files read, 1 warning");
  write("run/ranks/a.err", "[rank 1] Bus error\n");
  const Page page = follower().look();
  EXPECT_EQ(page.verdicts[2].judgement, Judgement::bad);
  EXPECT_FALSE(page.well());
}

TEST_F(FollowerTest, TheDeckIsComparedWithTheOneOnTheCommandLine) {
  emit_start();
  EXPECT_EQ(follower().look().verdicts[3].judgement, Judgement::well);
  write("d.yaml", "optimizer: {clip: 2}\n");  // edited while the run trains
  EXPECT_EQ(follower().look().verdicts[3].judgement, Judgement::bad);

  FollowTarget target{.folder = run_, .asked = AskedDeck{folder_.path() / "d.yaml", {}}};
  EXPECT_EQ(Follower(target).look().verdicts[3].judgement, Judgement::bad);
  target.asked->overrides = {"optimizer.clip=1"};
  EXPECT_EQ(Follower(target).look().verdicts[3].judgement, Judgement::well);
  target.asked->path = folder_.path() / "none.yaml";
  EXPECT_EQ(Follower(target).look().verdicts[3].judgement, Judgement::bad);
}

TEST_F(FollowerTest, AFileOfAFutureVersionIsCalledSo) {
  emit(StartEvent{.version = "9.0.0", .device = "host"});
  write("run/metrics.jsonl", "{\"kind\":\"flux\",\"time\":1}\nnonsense\n");
  const std::string text = to_text(follower().look(), false);
  EXPECT_NE(text.find("note          metrics.jsonl has 1 line that cannot be read\n"
                      "note          the run is of version 9.0.0, newer than this program, 0.1.0\n"
                      "note          metrics.jsonl has 1 line of a kind that this program does not "
                      "know: flux\n"),
            std::string::npos)
      << text;
}

TEST_F(FollowerTest, WhatIsNoRunIsRefused) {
  const ScratchFolder empty;
  EXPECT_THROW(Follower({.folder = empty.path()}), IoError);
  EXPECT_THROW(find_target("no/such/run"), IoError);
  EXPECT_THROW(find_target((folder_.path() / "d.yaml").string()), UsageError);
  emit_start();
  EXPECT_EQ(find_target((run_ / "metrics.jsonl").string()).folder, run_);
}

TEST_F(FollowerTest, ThePageShowsWhatIsKnown) {
  emit_start();
  emit(TrainEvent{.iteration = 3,
                  .consumed_samples = 24,
                  .consumed_tokens = 768,
                  .loss = 2.5,
                  .learning_rate = 1e-3,
                  .ms = 100,
                  .tokens_per_second = 7680,
                  .mfu = 0.431});
  emit(GpuEvent{3, {{"a", 0, 97.7, 1 << 30, 4e9, 65, 612}}});
  const std::string text = to_text(follower().look(), false);
  for (const char* part :
       {"progress      iteration 3, 24 samples\n", "loss          2.500000, best",
        "100.0 ms a step, 7680 tokens/s, 0.000 TFLOP/s a rank, MFU 43.1 %\n",
        "a:0     98 %      1.0 GiB / 3.7 GiB        65 C   612 W\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "in\n" << text;
  EXPECT_EQ(text.find('\033'), std::string::npos);
  emit(StopEvent{"a signal asked for it", 7, 75});
  EXPECT_NE(to_text(follower().look(), false).find("progress      iteration 7,"),
            std::string::npos);
  EXPECT_NE(to_text(follower().look(), true).find("\033[32myes"), std::string::npos);
}

// ---------------------------------------------------------------------------- Slurm

// As Slurm 22.05 prints it.
const std::string kJob =
    "JobId=12 JobName=gpt 2 UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 "
    "Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=1 "
    "TRES=cpu=2,node=2 Socks/Node=* Command=/home/a b/job.sh WorkDir=/home/a b "
    "StdErr=/home/a b/gpt_12.err StdIn=/dev/null StdOut=/home/a b/gpt_12.out Power= \n";

TEST(IsJobId, KnowsArraysAndHeterogeneousJobs) {
  for (const char* id : {"1", "123", "123_4", "123+0"}) EXPECT_TRUE(is_job_id(id)) << id;
  for (const char* id : {"", "runs", "1a", "12_", "12_a", "12;ls", "12 ", "_3", "-1"})
    EXPECT_FALSE(is_job_id(id)) << id;
}

TEST(ParseJob, ReadsStateAndFiles) {
  const SlurmJob job = parse_job("12", kJob);
  EXPECT_EQ(job.state.state, "RUNNING");
  EXPECT_EQ(job.state.reason, "None");
  EXPECT_EQ(job.directory, "/home/a b");
  EXPECT_EQ(job.out, "/home/a b/gpt_12.out");
  EXPECT_EQ(job.err, "/home/a b/gpt_12.err");
}

TEST(ParseJob, SaysWhatSlurmSaid) {
  EXPECT_EQ(message_of<DataError>(
                [] { parse_job("99", "slurm_load_jobs error: Invalid job id specified\n"); }),
            "Slurm does not know job 99: slurm_load_jobs error: Invalid job id specified; name "
            "the run folder instead");
  EXPECT_EQ(message_of<DataError>([] { parse_job("99", ""); }),
            "Slurm does not know job 99: no answer; name the run folder instead");
  EXPECT_EQ(message_of<DataError>([] {
              parse_job("12",
                        "JobId=14 ArrayJobId=12 ArrayTaskId=1 JobState=RUNNING WorkDir=/\n"
                        "JobId=13 ArrayJobId=12 ArrayTaskId=0 JobState=RUNNING WorkDir=/\n");
            }),
            "job 12 is an array: name one of its jobs, such as 12_0");
}

TEST(RunFolderOf, IsTheLastThatTheOutputNames) {
  const ScratchFolder folder;
  SlurmJob job{
      .state = {"12", "RUNNING", "None"}, .directory = "/scratch", .out = folder.path() / "o"};
  EXPECT_NE(message_of<DataError>([&] { run_folder_of(job); }).find("cannot open"),
            std::string::npos);
  std::ofstream(job.out) << "trireme-pretrain 0.1.0\n";
  EXPECT_NE(message_of<DataError>([&] { run_folder_of(job); }).find("names no run folder (yet)"),
            std::string::npos);
  std::ofstream(job.out, std::ios::app) << "run folder runs/old\nrun folder /else/new\r\n";
  EXPECT_EQ(run_folder_of(job), "/else/new");
  std::ofstream(job.out, std::ios::app)
      << "0: run folder runs/a b\nanother run is using the run folder 'x'; wait for it\n";
  EXPECT_EQ(run_folder_of(job), "/scratch/runs/a b");
}

}  // namespace
}  // namespace trireme::report
