#include "train/launch_command.hpp"

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

const std::vector<std::string> kCommand = {"./trireme-pretrain", "d.yaml", "run.name=a b"};

/// The words for four ranks whose parent is `launcher`, the command behind its options.
std::string words(std::vector<std::string> launcher, LaunchFacts facts = {}) {
  launcher.insert(launcher.end(), kCommand.begin(), kCommand.end());
  facts.parent = launcher;
  return launch_words(facts, 4, kCommand);
}

TEST(LaunchCommand, RepeatsMpirunsOptionsAsTheyWereTyped) {
  EXPECT_EQ(words({"mpirun", "-n", "4"}), "mpirun -n 4");
  EXPECT_EQ(words({"/usr/bin/mpiexec.openmpi", "--oversubscribe", "-np", "4", "--bind-to", "none",
                   "-x", "A=b c", "env", "B=1"}),
            "mpirun -n 4 --oversubscribe --bind-to none -x 'A=b c' env B=1");
  EXPECT_EQ(words({"mpirun", "--hostfile", "hosts", "--map-by", "ppr:2:node"},
                  {.oversubscribes = true, .binding = "none", .mapping = "ppr:2:node"}),
            "mpirun -n 4 --hostfile hosts --map-by ppr:2:node");
}

TEST(LaunchCommand, TellsMpirunThatRootMayRunIt) {
  EXPECT_EQ(words({"mpirun", "-n", "4", "env", "A=1"}, {.root = true}),
            "mpirun -n 4 --allow-run-as-root env A=1");
  EXPECT_EQ(words({"mpirun", "-n", "4", "--allow-run-as-root"}, {.root = true}),
            "mpirun -n 4 --allow-run-as-root");
}

TEST(LaunchCommand, AsksTheEnvironmentWhereMpirunCannotBeSeen) {
  const LaunchFacts facts{.oversubscribes = true, .binding = "none", .mapping = "slot"};
  const std::string expected = "mpirun -n 4 --oversubscribe --bind-to none --map-by slot";
  EXPECT_EQ(words({"orted", "-mca", "x", "y"}, facts), expected);
  EXPECT_EQ(words({"mpirun", "-n", "2", "./other", ":", "-n", "2"}, facts), expected);
  EXPECT_EQ(launch_words({.parent = {"mpirun", "-n", "4", "sh", "-c", "..."}}, 4, kCommand),
            "mpirun -n 4");
  EXPECT_EQ(launch_words({}, 4, kCommand), "mpirun -n 4");
}

TEST(LaunchCommand, OneRankNeedsNoLauncher) {
  EXPECT_EQ(launch_words({.parent = {"bash"}, .root = true}, 1, kCommand), "");
}

TEST(LaunchCommand, GivesSrunWhatItForgets) {
  EXPECT_EQ(launch_words({.by_srun = true}, 4, kCommand), "srun --mpi=pmix -n 4");
  EXPECT_EQ(launch_words({.by_srun = true, .cpus_per_task = "8", .gpu_bind = "none"}, 4, kCommand),
            "srun --mpi=pmix -n 4 --cpus-per-task=8 --gpu-bind=none");
  EXPECT_EQ(launch_words({.by_srun = true, .container = "--container-image='a b'"}, 1, kCommand),
            "srun --mpi=pmix -n 1 --container-image='a b'");
}

}  // namespace
}  // namespace trireme::train
