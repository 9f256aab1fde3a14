// The bit flips that tests order, and what --supervise does about hosts with wrong results.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <vector>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/launcher.hpp"
#include "train/startup/launch.hpp"
#include "train/verify/step_verifier.hpp"

namespace trireme::train {
namespace {

using Words = std::vector<std::string>;

TEST(BitFlip, IsReadFromWords) {
  const BitFlip flip = BitFlip::parse("messages rank=3 iteration=20 bit=7 element=11 times=2");
  EXPECT_EQ(flip.target, BitFlip::Target::messages);
  EXPECT_EQ(flip.rank, 3);
  EXPECT_EQ(flip.iteration, 20);
  EXPECT_EQ(flip.bit, 7);
  EXPECT_EQ(flip.element, 11);
  EXPECT_EQ(flip.times, 2);
}

TEST(BitFlip, OtherWordsAreRefused) {
  for (const char* text : {"", "weight", "weights rank", "weights rank=x", "weights bit=64",
                           "weights rank=-1", "weights colour=1", "weights rank=1x"})
    EXPECT_NE(message_of<DeckError>([&] { BitFlip::parse(text); }).find("train.verify.inject = "),
              std::string::npos)
        << text;
}

TEST(BitFlip, ChangesOneBitOfOneElement) {
  const auto backend = device::make_host_backend(1);
  std::vector<float> values(8, 1.0f);
  BitFlip::parse("weights bit=30 element=5").apply(*backend, {values.data(), DType::f32, {8}});
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]) ^ std::bit_cast<std::uint32_t>(1.0f),
              i == 5 ? 1u << 30 : 0u)
        << i;
}

TEST(Supervise, StartsTheRunWithoutItsOwnOptions) {
  const auto words = [](std::vector<const char*> given, bool with_restart) {
    given.insert(given.begin(), "trireme-pretrain");
    Words found = supervised_words(static_cast<int>(given.size()), const_cast<char**>(given.data()),
                                   with_restart);
    found.erase(found.begin());  // the program's path
    return found;
  };
  EXPECT_EQ(words({"a.yaml", "--supervise=mpirun -n 2", "-q"}, true), Words({"a.yaml", "-q"}));
  EXPECT_EQ(words({"a.yaml", "--supervise", "mpirun -n 2", "-q"}, true), Words({"a.yaml", "-q"}));
  EXPECT_EQ(words({"--restart", "never", "--max-restarts", "3", "--supervise", "srun"}, true),
            Words({"--restart", "never"}));
  EXPECT_EQ(words({"--restart", "never", "--max-restarts=3", "--supervise", "srun"}, false),
            Words());
  EXPECT_EQ(words({"--supervise", "-q"}, true), Words({"-q"}));
}

TEST(Supervise, LeavesHostsOutOfSlurmsSteps) {
  EXPECT_EQ(
      without_hosts({"/usr/bin/srun", "-n", "4", "trireme-pretrain"}, {"node1", "node7"}, "."),
      (Words{"/usr/bin/srun", "--exclude=node1,node7", "-n", "4", "trireme-pretrain"}));
  EXPECT_EQ(without_hosts({"srun", "--exclude=node3", "a"}, {"node1"}, "."),
            (Words{"srun", "--exclude=node3,node1", "a"}));
  EXPECT_EQ(without_hosts({"srun", "-x", "node3", "a"}, {"node1"}, "."),
            (Words{"srun", "-x", "node3,node1", "a"}));
}

TEST(Supervise, LeavesHostsOutOfHostFiles) {
  const ScratchFolder scratch;
  const std::string hosts = (scratch.path() / "hosts").string();
  std::ofstream(hosts) << "node1 slots=8\n# spares\nnode10:8\nnode2\n";
  const Words changed =
      without_hosts({"mpirun", "--hostfile", hosts, "-n", "8"}, {"node1"}, scratch.path());
  const std::string left = (scratch.path() / "hosts-without-suspects").string();
  EXPECT_EQ(changed, (Words{"mpirun", "--hostfile", left, "-n", "8"}));
  EXPECT_EQ(read_file(left), "# spares\nnode10:8\nnode2\n");
}

TEST(Supervise, CountsTheSpareHosts) {
  const ScratchFolder scratch;
  const std::string hosts = (scratch.path() / "hosts").string();
  std::ofstream(hosts) << "node1 slots=8\n# spares\nnode10:8\nnode2\n";
  EXPECT_TRUE(has_spares({"mpirun", "--hostfile", hosts, "-n", "9"}, {"node1"}));
  EXPECT_FALSE(has_spares({"mpirun", "--hostfile", hosts, "-n", "10"}, {"node1"}));
  EXPECT_FALSE(has_spares({"mpirun", "--hostfile", hosts, "-n", "9"}, {"node1", "node2"}));
  EXPECT_FALSE(has_spares({"mpirun", "-n", "1"}, {"node1"})) << "no host file";
  ::setenv("SLURM_JOB_NUM_NODES", "5", 1);
  EXPECT_TRUE(has_spares({"srun", "--nodes=4"}, {"node1"}));
  EXPECT_FALSE(has_spares({"srun", "-N", "5"}, {"node1"}));
  EXPECT_FALSE(has_spares({"srun", "-n", "8"}, {"node1"})) << "takes all nodes";
  ::unsetenv("SLURM_JOB_NUM_NODES");
}

TEST(Supervise, ReadsWhichHostLostARank) {
  EXPECT_EQ(host_that_lost_a_rank("mpirun noticed that process rank 3 with PID 812 on node gpu07 "
                                  "exited on signal 9 (Killed)."),
            "gpu07");
  EXPECT_EQ(host_that_lost_a_rank("  Remote daemon: [[40921,0],1] on node gpu08"), "gpu08");
  EXPECT_EQ(host_that_lost_a_rank("srun: error: gpu09: task 4: Segmentation fault"), "gpu09");
  EXPECT_EQ(host_that_lost_a_rank("srun: error: gpu09: tasks 4-7: Killed"), "gpu09");
  EXPECT_EQ(host_that_lost_a_rank("srun: error: Node failure on gpu10"), "gpu10");
  for (const char* line : {"srun: error: gpu09: task 4: Exited with exit code 75", "",
                           "srun: error: Unable to create step for job 7: Job/step aborted"})
    EXPECT_EQ(host_that_lost_a_rank(line), "") << line;
}

TEST(Supervise, OtherLaunchersNameNoHosts) {
  EXPECT_EQ(without_hosts({"mpirun", "-n", "8"}, {"node1"}, "."), Words());
  EXPECT_EQ(without_hosts({"srun"}, {}, "."), Words());
}

}  // namespace
}  // namespace trireme::train
