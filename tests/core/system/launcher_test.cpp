// An mpirun that hangs after its ranks have ended is noticed; one whose ranks run is left alone.
#include "core/system/launcher.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "core/clock.hpp"

namespace trireme {
namespace {

/// A shell that stands in for an mpirun that hangs. In `script`, `rank COMMAND` starts a rank.
class StandIn {
 public:
  explicit StandIn(const std::string& script) {
    const std::string all = "rank() { OMPI_COMM_WORLD_RANK=0 sh -c \"exec $1\" & }\n" + script +
                            "\nwhile :; do sleep 1; done";
    process_ = ::fork();
    if (process_ == 0) {
      ::execl("/bin/sh", "sh", "-c", all.c_str(), nullptr);
      ::_exit(127);
    }
    watch_ = LauncherWatch(process_, std::chrono::seconds(1));
  }
  ~StandIn() {
    watch_.kill();
    ::waitpid(process_, nullptr, 0);
  }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  void look() { hung_ = hung_ || watch_.hangs(); }
  bool hung() const { return hung_; }

 private:
  pid_t process_ = -1;
  LauncherWatch watch_{-1};
  bool hung_ = false;
};

TEST(LauncherWatch, NoticesLaunchersWhoseRanksHaveEnded) {
  StandIn ended("rank 'sleep 2'; rank 'sleep 3'");
  StandIn stopped("rank 'sh -c \"kill -STOP \\$\\$\"'; rank 'sleep 3'");
  std::array working = {StandIn("rank 'sleep 2'; rank 'sleep 60'"), StandIn("sleep 60"),
                        StandIn("rank 'sh -c \"kill -STOP \\$\\$\"'")};
  for (const Stopwatch watch; watch.seconds() < 20.0 && !(ended.hung() && stopped.hung());) {
    ended.look();
    stopped.look();
    for (StandIn& each : working) each.look();
    if (watch.seconds() < 2.0) {
      EXPECT_FALSE(ended.hung());
      EXPECT_FALSE(stopped.hung());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(ended.hung());
  EXPECT_TRUE(stopped.hung());
  EXPECT_FALSE(working[0].hung()) << "a rank runs";
  EXPECT_FALSE(working[1].hung()) << "there are no ranks";
  EXPECT_FALSE(working[2].hung()) << "no rank has ended";
}

TEST(LauncherWatch, KillsTheLauncherAndItsRanks) {
  // The pipe ends once no process has it open for writing.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t launcher = ::fork();
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
