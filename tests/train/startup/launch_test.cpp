#include "train/startup/launch.hpp"

#include <gtest/gtest.h>

#include "../../scratch_folder.hpp"
#include "core/files.hpp"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

void expect_in(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(BuildComplaint, NamesBothBuilds) {
  const ProgramInfo first{.host = "a", .path = "/x/train", .build = "0123456789abcdef0123"};
  EXPECT_EQ(build_problem(first, first), "");
  EXPECT_EQ(build_problem(first, {.host = "b", .path = "/y/train", .build = first.build}), "");
  const ProgramInfo other{.host = "b", .path = "/y/train", .build = "ba9876543210"};
  expect_in(build_problem(first, other),
            {"'/y/train' is build ba9876543210, but rank 0 on a runs build 0123456789ab from "
             "'/x/train'",
             "install one build"});
  // The same program with another library.
  expect_in(build_problem(first, {.path = "/y", .build = first.build + "+fedcba9876543210"}),
            {"'/y' is build 0123456789ab+fedcba987654, but", "runs build 0123456789ab from"});
  expect_in(build_problem(first, {.path = "/z"}), {"'/z' is build without build id"});
}

TEST(DeckComplaint, NamesTheFirstLineThatDiffers) {
  const DeckInfo first{.path = "d.yaml", .text = "a: 1\nb: 2\n", .overrides = "x=1\ny=2"};
  EXPECT_EQ(deck_problem(first, first), "");
  DeckInfo mine = first;
  mine.path = "/elsewhere/d.yaml";
  EXPECT_EQ(deck_problem(first, mine), "");
  mine.text = "a: 1\nb: 3\n";
  expect_in(deck_problem(first, mine),
            {"'/elsewhere/d.yaml' is not rank 0's 'd.yaml'", "line 2 is 'b: 3' there and 'b: 2' on",
             "file system that all hosts share"});
  mine.text = "a: 1\n";
  expect_in(deck_problem(first, mine), {"line 2 is missing there and 'b: 2' on rank 0"});
  mine.text = "a: 1\nb: 2\nc: 3";
  expect_in(deck_problem(first, mine), {"line 3 is 'c: 3' there and missing on rank 0"});
  mine.text = "a: 1\nb: 2";
  expect_in(deck_problem(first, mine), {"they end differently"});
}

TEST(DeckComplaint, NamesOtherOverrides) {
  const DeckInfo first{.path = "d.yaml", .text = "a: 1\n", .overrides = "x=1\ny=2"};
  DeckInfo mine = first;
  mine.overrides = "x=1";
  expect_in(deck_problem(first, mine),
            {"other key=value words than rank 0", "line 2 is missing there and 'y=2' on rank 0"});
}

TEST(DeckComplaint, ARankThatCannotReadTheDeckNeedsNone) {
  const DeckInfo first{.path = "d.yaml", .text = "a: 1\n"};
  EXPECT_EQ(deck_problem(first, {.path = "d.yaml"}), "");
  EXPECT_EQ(deck_problem({.path = "d.yaml"}, first), "");
}

TEST(GpuComplaint, EachRankNeedsOne) {
  GpuInfo info{.local_rank = 1, .local_ranks = 3, .names = {"H200", "H200"}};
  EXPECT_EQ(info.taken(), "H200");
  EXPECT_EQ(gpu_problem(info), "");
  info.local_rank = 2;
  expect_in(gpu_problem(info), {"3 ranks were started on this host, and each sees 2 GPUs",
                                "CUDA_VISIBLE_DEVICES is not set", "start at most 2 there",
                                "--gpus-per-node=N --gpu-bind=none"});
  info.visible = "4";
  info.names = {"H200"};
  expect_in(gpu_problem(info), {"each sees 1 GPU (CUDA_VISIBLE_DEVICES = 4)"});
  info.names.clear();
  info.why_none = "CUDA sees no GPU";
  EXPECT_EQ(gpu_problem(info), "run.device = cuda: CUDA sees no GPU");
}

TEST(Fp8Complaint, NamesTheGpuAndWhatIsNeeded) {
  using enum deck::Fp8Recipe;
  EXPECT_EQ(fp8_problem("NVIDIA H200", 90, block), "");
  EXPECT_EQ(fp8_problem("NVIDIA L4", 89, tensor), "");
  expect_in(fp8_problem("NVIDIA L4", 89, block),
            {"precision.fp8.recipe = block needs a GPU of compute capability 9.0",
             "but NVIDIA L4 has 8.9", "try precision.fp8.recipe: tensor"});
  expect_in(fp8_problem("NVIDIA A100-SXM4-80GB", 80, block),
            {"needs a GPU with FP8 tensor cores, of compute capability 8.9 or newer",
             "but NVIDIA A100-SXM4-80GB has 8.0", "try precision.gemm: same"});
}

TEST(GpuKindComplaint, NamesBothKindsAndTheKey) {
  EXPECT_EQ(gpu_kind_problem("H200", "H200"), "");
  expect_in(gpu_kind_problem("H200", "A100"),
            {"its GPU is a A100, rank 0's a H200", "run.mixed_gpus = true", "--constraint"});
}

TEST(NetworkComplaint, SaysWhyNcclWouldTakeSockets) {
  const NetworkInfo well{.active_ports = {"mlx5_0 port 1"}, .has_verbs = true, .has_devices = true};
  EXPECT_EQ(network_problem(well), "");
  NetworkInfo info = well;
  info.ib_disable = "0";
  EXPECT_EQ(network_problem(info), "");
  info.ib_disable = "1";
  expect_in(network_problem(info),
            {"InfiniBand is active (mlx5_0 port 1)", "NCCL_IB_DISABLE = 1; unset it",
             "NCCL_NET=Socket where sockets are meant"});
  info = well;
  info.has_verbs = false;
  expect_in(network_problem(info), {"install libibverbs1"});
  info = well;
  info.has_devices = false;
  expect_in(network_problem(info), {"mount /dev/infiniband in the container"});
  info.net = "Socket";
  EXPECT_EQ(network_problem(info), "");
  info.net = "IB";
  EXPECT_NE(network_problem(info), "");
  info.active_ports.clear();
  EXPECT_EQ(network_problem(info), "");
}

class NetworkInfoTest : public testing::Test {
 protected:
  void port(const std::string& device, const std::string& state, const std::string& layer) {
    const fs::path folder = ports_ / device / "ports" / "1";
    fs::create_directories(folder);
    write_file_atomically(folder / "state", state + "\n");
    write_file_atomically(folder / "link_layer", layer + "\n");
  }

  ScratchFolder scratch_;
  fs::path ports_ = scratch_.path() / "infiniband";
  fs::path devices_ = scratch_.path() / "dev";
};

TEST_F(NetworkInfoTest, CountsActiveInfinibandPorts) {
  port("mlx5_1", "4: ACTIVE", "InfiniBand");
  port("mlx5_0", "4: ACTIVE", "InfiniBand");
  port("mlx5_2", "1: DOWN", "InfiniBand");
  port("mlx5_3", "4: ACTIVE", "Ethernet");
  const NetworkInfo info = read_network_info(ports_, devices_);
  EXPECT_EQ(info.active_ports, (std::vector<std::string>{"mlx5_0 port 1", "mlx5_1 port 1"}));
  EXPECT_FALSE(info.has_devices);
}

TEST_F(NetworkInfoTest, FindsDevicesThatOpen) {
  fs::create_directories(devices_);
  write_file_atomically(devices_ / "rdma_cm", "");
  EXPECT_FALSE(read_network_info(ports_, devices_).has_devices);
  write_file_atomically(devices_ / "uverbs0", "");
  EXPECT_TRUE(read_network_info(ports_, devices_).has_devices);
}

TEST_F(NetworkInfoTest, AMachineWithoutInfinibandHasNoPorts) {
  EXPECT_TRUE(read_network_info(ports_, devices_).active_ports.empty());
}

const std::vector<std::string> kCommand = {"./trireme-pretrain", "d.yaml", "run.name=a b"};

/// The words for four ranks whose parent is `launcher`, the command after its options.
std::string words(std::vector<std::string> launcher, LaunchInfo info = {}) {
  launcher.insert(launcher.end(), kCommand.begin(), kCommand.end());
  info.parent = launcher;
  return launch_words(info, 4, kCommand);
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
  const LaunchInfo info{.oversubscribes = true, .binding = "none", .mapping = "slot"};
  const std::string expected = "mpirun -n 4 --oversubscribe --bind-to none --map-by slot";
  EXPECT_EQ(words({"orted", "-mca", "x", "y"}, info), expected);
  EXPECT_EQ(words({"mpirun", "-n", "2", "./other", ":", "-n", "2"}, info), expected);
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
