#include "sweep/process.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "sweeps.hpp"

namespace trireme::sweep {
namespace {

class ProcessTest : public SweepTest {
 protected:
  std::filesystem::path output_ = scratch_ / "output";

  static int end_of(Process& process) {
    for (int i = 0; i < 1000; ++i) {
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
    for (int i = 0; i < 1000; ++i) {
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
