// An mpirun that hangs after its ranks have ended is noticed; one whose ranks run is left alone.
#include "core/system/launcher.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/clock.hpp"

namespace trireme {
namespace {

constexpr std::chrono::seconds kTimeout{1};

/// A shell that stands in for an mpirun that hangs. In `script`, `rank COMMAND` starts one of
/// `ranks` ranks.
class StandIn {
 public:
  StandIn(const std::string& script, int ranks, const char* outer_rank = nullptr) {
    const std::string all = "rank() { OMPI_COMM_WORLD_SIZE=" + std::to_string(ranks) +
                            " OMPI_COMM_WORLD_RANK=0 sh -c \"exec $1\" & }\n" + script +
                            "\nexec sleep 60";
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("cannot start a process");
    if (process_ == 0) {
      if (outer_rank) ::setenv("OMPI_COMM_WORLD_RANK", outer_rank, 1);
      ::execl("/bin/sh", "sh", "-c", all.c_str(), nullptr);
      ::_exit(127);
    }
    watch_ = LauncherWatch(process_, kTimeout);
  }
  ~StandIn() {
    watch_.kill();
    ::waitpid(process_, nullptr, 0);
  }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  void check() { hung_ = hung_ || watch_.hangs(); }
  bool hung() const { return hung_; }

 private:
  pid_t process_ = -1;
  LauncherWatch watch_{-1};
  bool hung_ = false;
};

struct Healthy {
  const char* why;
  StandIn launcher;
};

TEST(LauncherWatch, NoticesLaunchersWhoseRanksHaveEnded) {
  const std::string two = "rank 'sleep 2'; rank 'sleep 3'";
  const std::string stopped = "rank 'sh -c \"kill -STOP \\$\\$\"'";
  std::array hanging = {StandIn(two, 2), StandIn(two + "; wait", 2),
                        StandIn(stopped + "; rank 'sleep 3'", 2)};
  std::array healthy = {
      Healthy{"a rank runs", {"rank 'sleep 2'; rank 'sleep 60'", 2}},
      Healthy{"there are no ranks", {"sleep 60 & sleep 2", 0}},
      Healthy{"no rank has ended", {stopped, 1}},
      Healthy{"a rank runs without its environment",
              {"rank 'sleep 2'; rank 'sh -c \"sleep 2; exec env -i sleep 60\"'", 2}},
      Healthy{"an agent runs", {two + "; sleep 60 &", 2}},
      Healthy{"a rank outlives its agent",
              {"size=OMPI_COMM_WORLD_SIZE=2 rank=OMPI_COMM_WORLD_RANK=1; rank 'sleep 2'; "
               "sh -c \"env $size $rank sleep 20 >/dev/null 2>&1 & sleep 3\" &",
               2}},
      Healthy{"a rank runs on another host", {two, 3}},
      Healthy{"it is stopped", {two + "; kill -STOP $$", 2}},
      Healthy{"it is a rank", {two, 2, "0"}}};
  const auto all_hang = [&] { return std::ranges::all_of(hanging, &StandIn::hung); };
  for (const Stopwatch watch; watch.seconds() < 7.0 || (watch.seconds() < 20.0 && !all_hang());) {
    for (StandIn& each : hanging) each.check();
    for (Healthy& each : healthy) each.launcher.check();
    if (watch.seconds() < 2.0) {
      EXPECT_TRUE(std::ranges::none_of(hanging, &StandIn::hung)) << "ranks run";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (const StandIn& each : hanging) EXPECT_TRUE(each.hung()) << &each - hanging.data();
  for (const Healthy& each : healthy) EXPECT_FALSE(each.launcher.hung()) << each.why;
}

TEST(LauncherWatch, KillsTheLauncherAndItsRanks) {
  // The pipe ends once no process has it open for writing.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    ::execl("/bin/sh", "sh", "-c", "sleep 60 & kill -STOP $$", nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  ::waitpid(launcher, nullptr, WUNTRACED);  // until it is stopped
  LauncherWatch(launcher).kill();
  int status = 0;
  ::waitpid(launcher, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
}

}  // namespace
}  // namespace trireme
