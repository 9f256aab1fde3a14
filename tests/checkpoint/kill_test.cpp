// A job that saves without pause is killed with SIGKILL at a random moment, again and again: the
// checkpoint that `latest` names is whole each time.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "../scratch_folder.hpp"
#include "checkpoint/file.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/launcher.hpp"
#include "save_loop.hpp"

namespace trireme::checkpoint {
namespace {

constexpr int kRanks = 3;
constexpr int kKills = 20;

class KillTest : public testing::Test {
 protected:
  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }

  /// Starts save_loop under mpirun, its output thrown away; returns mpirun's process id.
  pid_t start(std::int64_t first, std::int64_t last) const {
    const std::string begin = std::to_string(first);
    const std::string end = std::to_string(last);
    const std::string ranks = std::to_string(kRanks);
    const pid_t child = ::fork();
    if (child == 0) {
      if (!std::freopen("/dev/null", "w", stdout) || !std::freopen("/dev/null", "w", stderr))
        ::_exit(126);
      ::execl(TRIREME_MPIEXEC, TRIREME_MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n",
              ranks.c_str(), TRIREME_SAVE_LOOP, folder_.c_str(), begin.c_str(), end.c_str(),
              nullptr);
      ::_exit(127);
    }
    if (child < 0) throw IoError("cannot start a process");
    return child;
  }

  /// The exit code of mpirun, -1 where a signal ends it. One that hangs after its ranks have ended
  /// is killed, as its ranks are.
  static int wait_for(pid_t child, LauncherWatch watch) {
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (watch.hangs()) watch.kill();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static int wait_for(pid_t child) { return wait_for(child, LauncherWatch(child)); }

  pid_t pid_of(int rank) const {
    return std::stoi(read_file(folder_ / ("pid." + std::to_string(rank))));
  }

  bool has_unfinished() const {
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints()))
      if (entry.path().filename().string().rfind("step-", 0) == 0 &&
          entry.path().extension() == ".part")
        return true;
    return false;
  }

  /// The iteration of the checkpoint that `latest` names, after verifying each of its elements.
  std::int64_t verified_latest() const {
    const std::optional<Latest> latest = find_latest(checkpoints());
    if (!latest) {
      ADD_FAILURE() << "no checkpoint is left";
      return 0;
    }
    EXPECT_EQ(latest->note, "");
    const Reader reader(latest->path);
    const std::int64_t iteration = reader.header().get<std::int64_t>("iteration");
    EXPECT_EQ(latest->path, step_path(checkpoints(), iteration));
    for (const ShardedTensors::Logical& tensor : loop_model()) {
      std::vector<float> elements(static_cast<std::size_t>(tensor.shape.size()));
      reader.read_whole(tensor.name, DType::f32, elements.data());
      EXPECT_EQ(std::count(elements.begin(), elements.end(), loop_value(iteration)),
                tensor.shape.size())
          << tensor.name << " of iteration " << iteration;
    }
    return iteration;
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

TEST_F(KillTest, APreviousCheckpointAlwaysLoads) {
  ASSERT_EQ(wait_for(start(1, 1)), 0) << "the job cannot run here";
  std::int64_t iteration = verified_latest();
  ASSERT_EQ(iteration, 1);
  std::mt19937 random(7);
  int interrupted = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    // A kill between the renaming and `latest` leaves a file newer than `latest`: the job begins
    // after it, so that its first file appears when all its ranks have told their process ids.
    const std::int64_t first = list_steps(checkpoints()).back().iteration + 1;
    const pid_t job = start(first, first + 1000000);
    const std::filesystem::path next = step_path(checkpoints(), first);
    const Stopwatch since_start;
    while (!std::filesystem::exists(next) && since_start.seconds() < 60)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(std::filesystem::exists(next)) << "the job saves nothing";
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200000));
    LauncherWatch watch(job, std::chrono::seconds(20));
    watch.check();  // it remembers the ranks
    if (kill % 4 == 3) {
      for (int rank = 0; rank < kRanks; ++rank) ::kill(pid_of(rank), SIGKILL);
    } else {
      ::kill(pid_of(static_cast<int>(random() % kRanks)), SIGKILL);
    }
    EXPECT_NE(wait_for(job, watch), 0) << "the job outlived the kill";
    interrupted += has_unfinished();
    const std::int64_t last = verified_latest();
    EXPECT_GE(last, iteration) << "kill " << kill;
    iteration = last;
  }
  EXPECT_GT(interrupted, 0) << "no kill hit a save";

  ASSERT_EQ(wait_for(start(iteration + 1, iteration + 1)), 0);
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints()))
    EXPECT_TRUE(entry.path().filename() == "latest" || entry.path().extension() == ".h5")
        << entry.path() << " of a killed run is left after the next save";
  EXPECT_EQ(verified_latest(), iteration + 1);
  std::printf("%d of %d kills left an unfinished file\n", interrupted, kKills);
}

}  // namespace
}  // namespace trireme::checkpoint
