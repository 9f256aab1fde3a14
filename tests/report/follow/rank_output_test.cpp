#include "report/follow/follower.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "../../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::report {
namespace {

TEST(TellsOfError, KnowsTheWordsOfLibrariesAndLaunchers) {
  for (const char* line : {
           "trireme-pretrain: rank 3 on node07: out of memory",
           "trireme-pretrain: the file is gone",
           "terminate called after throwing an instance of 'std::bad_alloc'",
           "node07:1234:1299 [3] misc/socket.cc:50 NCCL error: unhandled system error",
           "slurmstepd: error: *** STEP 12.0 ON a CANCELLED AT 2026-11-21T14:00:00 ***",
           "[node07:01234] *** Process received signal ***: Segmentation fault (11)",
           "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
           "slurmstepd: Detected 1 oom-kill event(s)",
           "Traceback (most recent call last):",
       })
    EXPECT_TRUE(tells_of_error(line)) << line;
}

TEST(TellsOfError, LeavesWarningsAndChatAlone) {
  for (const char* line : {
           "",
           "warning: rank 0 on vm: no GPU is watched: cannot open shared object file",
           "WARNING: Open MPI accepted a TCP connection ... error",
           "node07:1:1 [0] NCCL INFO Using network Socket",
           "node07:1:1 [0] NCCL INFO cannot use peers: error",
           "trireme-pretrain 0.1.0",
           "trireme-pretrain 0.1.0 | 2 ranks on a | tensor 1 x pipeline 1 x data 2",
           "command    trireme-pretrain error.yaml",
           "continue   trireme-pretrain error.yaml",
           "run folder runs/fatal",
           "restart    from runs/error-study/checkpoints/step-00000004.h5, iteration 4",
           "checkpoint runs/error-study/checkpoints/step-00000004.h5",
           " iteration       10/      20 | number of nan iterations:   0 |",
       })
    EXPECT_FALSE(tells_of_error(line)) << line;
}

TEST(RankOutputTest, CountsByRankAndForgetsEarlierStarts) {
  RankOutput output;
  EXPECT_TRUE(output.empty());
  output.take("a.err", "[rank 0] --- output since 2026-11-21 14:00:00");
  output.take("a.err", "[rank 1] --- output since 2026-11-21 14:00:00");
  output.take("a.err", "[rank 1] warning: slow");
  output.take("a.err", "[rank 1] terminate called");
  output.take("a.err", "[rank 1] Aborted");
  output.take("slurm-1.out", "srun: error: a: task 0: Exited with exit code 1");
  EXPECT_EQ(output.errors(), 3);
  EXPECT_EQ(output.warnings(), 1);
  EXPECT_EQ(output.files(), 2);
  EXPECT_EQ(output.first_error(), "a.err: rank 1: terminate called");

  output.take("a.err", "[rank 0] --- output since 2026-11-21 15:00:00");
  EXPECT_EQ(output.errors(), 3) << "rank 1 has not started again";
  output.take("a.err", "[rank 1] --- output since 2026-11-21 15:00:00");
  EXPECT_EQ(output.errors(), 1);
  EXPECT_EQ(output.warnings(), 0);
  output.take("slurm-1.out", "slurmstepd: error: *** JOB 1 CANCELLED DUE TO TIME LIMIT ***");
  EXPECT_EQ(output.errors(), 2);
  output.take("slurm-1.out", "command    trireme-pretrain d.yaml");
  EXPECT_EQ(output.errors(), 0) << "the job was queued again";
  output.take("slurm-1.out", "srun: error: again");
  EXPECT_EQ(output.errors(), 1);
  output.forget("slurm-1.out");
  EXPECT_EQ(output.errors(), 0);
  EXPECT_EQ(output.first_error(), "");
}

TEST(RankOutputTest, ShowsErrorsWithoutControlCharacters) {
  RankOutput output;
  output.take("a.err", "error\033[2J" + std::string(1000, 'x'));
  EXPECT_EQ(output.first_error(), "a.err: error [2J" + std::string(191, 'x') + "...");
}

// ---------------------------------------------------------------------------- lines

using Lines = std::vector<std::string>;

class LineFileTest : public testing::Test {
 protected:
  void append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }

  ScratchFolder folder_;
  std::filesystem::path path_ = folder_.path() / "metrics.jsonl";
  LineFile file_{path_};
};

TEST_F(LineFileTest, GivesEachLineOnceWhenItIsComplete) {
  EXPECT_TRUE(file_.read().lines.empty()) << "there is no file yet";
  append("one\ntw");
  EXPECT_EQ(file_.read().lines, Lines{"one"});
  EXPECT_TRUE(file_.read().lines.empty());
  append("o\r\n\nthree\n");
  const LineFile::News news = file_.read();
  EXPECT_EQ(news.lines, (Lines{"two", "", "three"}));
  EXPECT_FALSE(news.anew);
}

TEST_F(LineFileTest, BeginsAnewWhereTheFileIsReplacedOrCut) {
  append("one\ntwo\nthr");
  file_.read();
  write_file_atomically(path_, "one\nother\nthird\nfourth\n");
  LineFile::News news = file_.read();
  EXPECT_TRUE(news.anew);
  EXPECT_EQ(news.lines, (Lines{"one", "other", "third", "fourth"}));

  std::ofstream(path_) << "x\n";  // the same file, shorter
  news = file_.read();
  EXPECT_TRUE(news.anew);
  EXPECT_EQ(news.lines, Lines{"x"});

  std::ofstream(path_) << "y\nand more than there was\n";  // the same file, and longer
  news = file_.read();
  EXPECT_TRUE(news.anew);
  EXPECT_EQ(news.lines, (Lines{"y", "and more than there was"}));
}

TEST_F(LineFileTest, NamesWhatCannotBeRead) {
  LineFile folder(folder_.path());
  EXPECT_THROW(folder.read(), IoError);
}

TEST(LastLines, OfEveryFileOfARun) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() / "ranks");
  std::ofstream(folder.path() / "console.log")
      << "hosts      a (ranks: 2), cuda backend on NVIDIA H200\none\ntwo\n";
  std::ofstream(folder.path() / "ranks" / "b.out") << "[rank 1] first\n[rank 1] last\n";
  std::ofstream(folder.path() / "ranks" / "a.err") << "";
  std::ofstream(folder.path() / "metrics.jsonl")
      << "{\"kind\":\"train\",\"iteration\":10,\"ms\":21.5}\n{\"kind\":\"train\",\"iteration\":20,"
         "\"ms\":20}\n";
  EXPECT_EQ(last_lines(folder.path(), 1),
            "iteration 20: 20.0 ms\n"
            "hosts      a (ranks: 2), cuda backend on NVIDIA H200\n"
            "\n== console.log, 3 lines\ntwo\n"
            "\n== ranks/a.err, 0 lines\n"
            "\n== ranks/b.out, 2 lines\n[rank 1] last\n");
}

}  // namespace
}  // namespace trireme::report
