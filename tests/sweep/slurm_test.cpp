#include "sweep/sweep.hpp"

#include <algorithm>

#include "../message_of.hpp"
#include "sweeps.hpp"

namespace trireme::sweep {
namespace {

using SlurmTest = SweepTest;

TEST_F(SlurmTest, OneArrayForEachNumberOfRanks) {
  const PlannedSweep sweep = plan({"sweep.schedule.peak=[1e-3, 2e-3, 3e-3, 4e-3]"});
  const auto lines = [&](const std::vector<int>& tasks, std::optional<std::int64_t> jobs,
                         const std::string& words) {
    std::string text;
    for (const auto& command : sbatch_commands(sweep, tasks, jobs, words))
      text += shell_line(command) + "\n";
    return text;
  };
  const std::string script = (scratch_ / "out" / "sweep" / "job.sbatch").string();
  EXPECT_EQ(lines({1, 2, 3, 4, 5, 6, 8}, 2, "--time=1:00:00 --comment='a b'"),
            "sbatch --parsable --array=1-4%2 --ntasks=1 --time=1:00:00 '--comment=a b' " + script +
                "\nsbatch --parsable --array=5-6,8%2 --ntasks=2 --time=1:00:00 "
                "'--comment=a b' " +
                script + "\n");
  EXPECT_EQ(lines({2, 4}, std::nullopt, ""),
            "sbatch --parsable --array=2,4 --ntasks=1 " + script + "\n");
  EXPECT_EQ(lines({}, std::nullopt, ""), "");
}

TEST_F(SlurmTest, ClusterSectionChoosesTheNodesOfEachArray) {
  const std::vector<std::string> cluster = {
      "run.device=cuda",
      "cluster={kinds: [1*a100:1, 2*a10:4], partition: gpu, account: physics, "
      "modules: cuda openmpi, time: 90 minutes}"};
  const PlannedSweep sweep = plan(cluster);
  const auto commands = sbatch_commands(sweep, {1, 2, 3, 4}, std::nullopt, "--nice");
  ASSERT_EQ(commands.size(), 2u);
  const std::string more = " --partition=gpu --account=physics --time=90 --nice ";
  EXPECT_NE(shell_line(commands[0])
                .find("--array=1-2 --nodes=1 --ntasks-per-node=1 --gpus-per-node=a100:1" + more),
            std::string::npos)
      << shell_line(commands[0]);
  EXPECT_NE(shell_line(commands[1])
                .find("--array=3-4 --nodes=1 --ntasks-per-node=2 --gpus-per-node=a10:2" + more),
            std::string::npos)
      << shell_line(commands[1]);
  EXPECT_NE(job_script(sweep).find("module load cuda openmpi || refuse "), std::string::npos);
  const PlannedSweep small = plan({"run.device=cuda", "cluster.kinds=1*a10:1, 1*a100:1"});
  EXPECT_NE(message_of<DeckError>([&] {
              sbatch_commands(small, {4}, std::nullopt, "");
            }).find("has 2 ranks, more than one kind of nodes has GPUs"),
            std::string::npos);
}

TEST_F(SlurmTest, ListHasALineForEachRun) {
  const PlannedSweep sweep = plan();
  const Launch launch{.program = "trireme-pretrain",
                      .deck = deck_copy(sweep),
                      .launcher = kSrun,
                      .alone_on_one_rank = false};
  const std::string list = run_list(sweep, launch);
  EXPECT_EQ(list.find("tensor=1,peak=1e-3 srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 -n 1 "
                      "trireme-pretrain " +
                      deck_copy(sweep).string() + " sweep= "),
            0);
  EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), 4);
}

TEST_F(SlurmTest, KilledRanksCountAsStoppedAfterACheckpoint) {
  const std::string script = job_script(plan());
  const std::size_t before = script.find("\"${folder%/*}/$name\"/metrics.jsonl");
  const std::size_t run = script.find("eval \"exec $command\"");
  EXPECT_LT(script.find("export SLURM_PMIX_FENCE"), run);
  const std::size_t taken = script.find("134 | 135 | 137 | 139)");
  ASSERT_NE(before, std::string::npos);
  ASSERT_NE(taken, std::string::npos);
  EXPECT_LT(before, run);
  EXPECT_LT(run, taken);
  EXPECT_LT(taken, script.find("echo \"$code\" >\"$folder/$name.exit\""));
}

TEST_F(SlurmTest, LineBreaksAreRefused) {
  const Launch launch{.program = "a\nb", .deck = "d.yaml", .launcher = kSrun};
  const std::string problem =
      message_of<UsageError>([&] { submission_text(plan(), launch, std::nullopt, ""); });
  EXPECT_NE(problem.find("has a line break, which Slurm's script cannot hold"), std::string::npos)
      << problem;
  EXPECT_NE(message_of<UsageError>([&] { submit(plan(), launch, std::nullopt, ""); }), "");
}

TEST_F(SlurmTest, JobNamesTellFoldersApart) {
  const std::string name = job_name(plan());
  EXPECT_EQ(name.substr(0, 3), "lr-");
  EXPECT_EQ(name.size(), 11);
  EXPECT_EQ(job_name(plan()), name);
  EXPECT_NE(job_name(plan({"run.output=elsewhere"})), name);
  EXPECT_NE(job_script(plan()).find("#SBATCH --job-name=" + name + "\n"), std::string::npos);
}

TEST_F(SlurmTest, QueueOfASweepThatWasNeverSubmittedIsEmpty) {
  EXPECT_TRUE(read_queue(plan(), /*must_answer=*/true).empty());
}

}  // namespace
}  // namespace trireme::sweep
