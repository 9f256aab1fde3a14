#include "report/follow/slurm.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "../../message_of.hpp"
#include "../../scratch_folder.hpp"
#include "core/error.hpp"

namespace trireme::report {
namespace {

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
            "Slurm tells nothing of job 99: slurm_load_jobs error: Invalid job id specified; name "
            "the run folder instead");
  EXPECT_EQ(message_of<DataError>([] { parse_job("99", ""); }),
            "Slurm tells nothing of job 99: no answer; name the run folder instead");
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
