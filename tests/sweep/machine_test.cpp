#include "sweep/sweep.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "sweeps.hpp"

namespace trireme::sweep {
namespace {

constexpr std::size_t kGibi = std::size_t{1} << 30;

TEST(Machine, RanksWantPlaces) {
  const Machine machine{
      .gpus = {"0", "1"}, .gpu_bytes = 80 * kGibi, .cores = 8, .host_bytes = 64 * kGibi};
  const auto why = [&](Need need, std::optional<int> max_ranks = {}) {
    return why_unfit(machine, need, max_ranks).value_or("");
  };
  EXPECT_EQ(why({2, 80 * kGibi, true}), "");
  EXPECT_EQ(why({4, kGibi, true}), "4 ranks, but 2 GPUs");
  EXPECT_EQ(why({4, kGibi, true}, 4), "");
  EXPECT_EQ(why({2, kGibi, true}, 1), "2 ranks, but --max-ranks 1");
  EXPECT_EQ(why({1, 81 * kGibi, true}), "81.0 GiB a rank, but GPUs of 80.0 GiB");
  EXPECT_EQ(why({8, 8 * kGibi, false}), "");
  EXPECT_EQ(why({8, 9 * kGibi, false}), "72.0 GiB in all, but 64.0 GiB of memory");
  EXPECT_EQ(why({9, kGibi, false}), "9 ranks, but 8 cores");
  EXPECT_EQ(why_unfit({.cores = 2}, {1, kGibi, true}, {}), "1 rank, but 0 GPUs");
}

TEST(Machine, ThisOneHasSomething) {
  const Machine machine = this_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.host_bytes, kGibi / 4);
}

TEST(GpuPool, GivesEachGpuToOne) {
  GpuPool pool({"a", "b", "c"});
  const auto first = pool.take(2);
  EXPECT_EQ(first, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(pool.take(2), std::nullopt);
  EXPECT_EQ(pool.take(1), std::vector<std::string>{"c"});
  pool.give_back(*first);
  EXPECT_EQ(pool.take(2), first);
}

class ProcessTest : public SweepTest {
 protected:
  std::filesystem::path output_ = scratch_ / "output";

  static int end_of(Process& process) {
    for (int i = 0; i < 10000; ++i) {
      if (const auto code = process.ended()) return *code;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }
};

TEST_F(ProcessTest, OutputEnvironmentAndExitCode) {
  for (int i = 0; i < 2; ++i) {
    Process process(
        {{"sh", "-c", "echo $WORD; echo oops >&2; cat; exit 75"}, {{"WORD", "hello"}}, output_});
    EXPECT_EQ(end_of(process), 75);
  }
  EXPECT_EQ(read_file(output_), "hello\noops\nhello\noops\n");
}

TEST_F(ProcessTest, SignalsAndPrograms) {
  Process sleeper({{"sleep", "60"}, {}, output_});
  EXPECT_EQ(sleeper.ended(), std::nullopt);
  sleeper.signal(SIGUSR1);
  EXPECT_EQ(end_of(sleeper), 128 + SIGUSR1);
  Process absent({{"no-such-program"}, {}, output_});
  EXPECT_EQ(end_of(absent), 127);
  EXPECT_EQ(read_file(output_), "no-such-program: No such file or directory\n");
  EXPECT_THROW(Process({{"true"}, {}, scratch_ / "absent" / "output"}), IoError);
}

TEST_F(ProcessTest, DiesWithItsParent) {
  const pid_t parent = ::fork();
  if (parent == 0) {
    Process child(
        {{"sh", "-c", "trap 'echo ended; exit' TERM; echo begun; sleep 60 & wait"}, {}, output_});
    ::pause();
  }
  const auto says = [&](const std::string& text) {
    for (int i = 0; i < 10000; ++i) {
      if (std::filesystem::exists(output_) && read_file(output_) == text) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  EXPECT_TRUE(says("begun\n"));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(says("begun\nended\n"));
}

}  // namespace

}  // namespace trireme::sweep
