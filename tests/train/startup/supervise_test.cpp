// --supervise with a launcher that hangs after its ranks have ended.
#include "train/startup/launch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "../../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::train {
namespace {

/// Supervises a stand-in for mpirun that runs a rank, the shell command `rank`, and then hangs.
ExitCode supervise_hanging(const ScratchFolder& folder, const std::string& rank) {
  const std::string launcher = "cd '" + folder.path().string() +
                               "'; echo >>starts\n"
                               "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 sh -c \"$1\" &\n"
                               "exec sleep 60";
  const std::vector<std::string> command = {"sh", "-c", launcher, "mpirun", rank};
  return supervise({.command = command,
                    .again = command,
                    .folder = folder.path(),
                    .max_restarts = 1,
                    .launcher_timeout = std::chrono::seconds(1)});
}

std::size_t starts(const ScratchFolder& folder) {
  return read_file(folder.path() / "starts").size();
}

TEST(Supervise, TakesTheRanksExitCodeFromALauncherThatHangs) {
  for (const char* code : {"0", "76"}) {
    const ScratchFolder folder;
    const std::string rank =
        std::string("echo '{\"kind\":\"start\",\"time\":4e9}\n") +
        "{\"kind\":\"stop\",\"time\":4e9,\"reason\":\"diverged\",\"exit_code\":" + code +
        "}' >metrics.jsonl; sleep 2";
    EXPECT_EQ(static_cast<int>(supervise_hanging(folder, rank)), std::stoi(code));
    EXPECT_EQ(starts(folder), 1u);
  }
}

TEST(Supervise, StartsAgainAfterALauncherThatHangs) {
  const ScratchFolder folder;
  const std::string rank =
      "echo '{\"kind\":\"start\",\"time\":4e9}\n"
      "{\"kind\":\"train\",\"time\":4e9,\"iteration\":'$(wc -l <starts)'}' >metrics.jsonl; sleep 2";
  EXPECT_EQ(supervise_hanging(folder, rank), ExitCode::failure) << "--max-restarts";
  EXPECT_EQ(starts(folder), 2u);
}

TEST(Supervise, AnOlderStopEventIsNoExitCode) {
  const ScratchFolder folder;
  write_file_atomically(folder.path() / "metrics.jsonl",
                        "{\"kind\":\"start\",\"time\":1}\n"
                        "{\"kind\":\"stop\",\"time\":2,\"reason\":\"finished\",\"exit_code\":0}\n");
  EXPECT_EQ(supervise_hanging(folder, "sleep 2"), ExitCode::failure) << "hung at one place twice";
  EXPECT_EQ(starts(folder), 2u);
}

TEST(Supervise, MakesTheRanksOfSrunMeetByTheRing) {
  const ScratchFolder folder;
  const std::vector<std::string> command = {"sh", "-c", "test \"$SLURM_PMIX_FENCE\" = ring"};
  EXPECT_EQ(supervise({.command = command, .again = command, .folder = folder.path()}),
            ExitCode::success);
}

// Each start dies after a second, and the next one begins a second later.
TEST(Supervise, TheTimeLimitIsThatOfAllStarts) {
  const ScratchFolder folder;
  const std::string starts = (folder.path() / "starts").string();
  const std::vector<std::string> command = {
      "sh", "-c", "echo \"$*\" >>'" + starts + "'; sleep 1; kill -9 $$", "launcher", "--time-limit",
      "1h", "x"};
  const auto limited = [&](double seconds) {
    std::filesystem::remove(starts);
    return supervise({.command = command,
                      .again = command,
                      .folder = folder.path(),
                      .max_restarts = 9,
                      .time_limit = seconds});
  };
  EXPECT_EQ(limited(2), ExitCode::stopped_early);
  EXPECT_EQ(read_file(starts), "--time-limit 1h x\n");
  EXPECT_EQ(limited(100), ExitCode::failure) << "the same end twice";
  const std::string words = read_file(starts);
  EXPECT_TRUE(words.starts_with("--time-limit 1h x\n--time-limit 9")) << words;
  EXPECT_TRUE(words.ends_with("s x\n")) << words;
  EXPECT_EQ(std::count(words.begin(), words.end(), '\n'), 2) << words;
}

}  // namespace
}  // namespace trireme::train
