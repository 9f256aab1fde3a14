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
#include "train/startup/supervise.hpp"
#include "train/verify/bit_flip.hpp"

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

TEST(Supervise, LeavesHostsOutOfSlurmsSteps) {
  EXPECT_EQ(
      without_hosts({"/usr/bin/srun", "-n", "4", "trireme-pretrain"}, {"node1", "node7"}, "."),
      (Words{"/usr/bin/srun", "--exclude=node1,node7", "-n", "4", "trireme-pretrain"}));
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

TEST(Supervise, OtherLaunchersNameNoHosts) {
  EXPECT_EQ(without_hosts({"mpirun", "-n", "8"}, {"node1"}, "."), Words());
  EXPECT_EQ(without_hosts({"srun"}, {}, "."), Words());
}

}  // namespace
}  // namespace trireme::train
