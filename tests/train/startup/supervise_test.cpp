// --supervise with a launcher that hangs after its ranks have ended.
#include "train/startup/launch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

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

/// Supervises a stand-in for mpirun, whose starts end as `endings` say, a word each:
/// "corrupt:HOST", "lost:HOST", "early" (75) and "done". Returns the hosts of each start, a line
/// each.
std::string hosts_of_starts(const std::string& hosts, const std::string& endings,
                            const std::string& option = "--hostfile ") {
  const ScratchFolder folder;
  const std::string at = folder.path().string();
  write_file_atomically(folder.path() / "hosts", hosts);
  write_file_atomically(folder.path() / "launcher", "#!/bin/sh\ncd '" + at + "'\nset -- " +
                                                        endings +
                                                        R"( -- "$@"
n=$(($(cat starts 2>/dev/null | wc -l) + 1))
eval ending=\${$n}
while [ "$1" != -- ]; do shift; done
file=$2; case $file in --*=*) file=${file#*=};; *) file=$3;; esac
echo $(grep -o '^[a-z.]*' $file) >>starts
echo '{"kind":"start","time":4e9}
{"kind":"train","time":4e9,"iteration":'$n'}' >metrics.jsonl
case $ending in
  corrupt:*) echo ${ending#*:} >>suspect-hosts; exit 77;;
  lost:*) echo "mpirun noticed that process rank 0 with PID 1 on node ${ending#*:} exited on signal 9." >&2
          exit 137;;
  early) exit 75;;
esac
)");
  std::filesystem::permissions(folder.path() / "launcher", std::filesystem::perms::owner_all);
  std::vector<std::string> command = {at + "/launcher"};
  if (option.ends_with("="))
    command.push_back(option + at + "/hosts");
  else
    command.insert(command.end(), {"--hostfile", at + "/hosts"});
  command.insert(command.end(), {"-n", "2"});
  supervise({.command = command, .again = command, .folder = folder.path(), .max_restarts = 9});
  return read_file(folder.path() / "starts");
}

TEST(Supervise, HostsStayLeftOut) {
  const std::string three = "a slots=1\nb slots=1\nc slots=1\n";
  EXPECT_EQ(hosts_of_starts(three, "corrupt:b lost:a early lost:a done"),
            "a b c\na c\na c\na c\na c\n")
      << "without a, too few are left";
  EXPECT_EQ(hosts_of_starts(three + "e slots=1\n", "lost:a early lost:a corrupt:b done"),
            "a b c e\na b c e\na b c e\nb c e\nc e\n");
}

TEST(Supervise, HostsAreLeftOutByShortNames) {
  EXPECT_EQ(hosts_of_starts("a.example.org slots=2\nb slots=2\n", "corrupt:a done"),
            "a.example.org b\nb\n");
  EXPECT_EQ(hosts_of_starts("a slots=2\nb slots=2\n",
                            "lost:a.example.org early lost:a.example.org done", "--hostfile="),
            "a b\na b\na b\nb\n");
}

TEST(Supervise, AHostOfAnotherNameStaysAndItSaysSo) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(hosts_of_starts("a slots=2\nb slots=2\n", "corrupt:x done"), "a b\n");
  EXPECT_EQ(hosts_of_starts("a slots=2\nb slots=2\n", "lost:x early lost:x done"),
            "a b\na b\na b\na b\n");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("silent data corruption on x; start the run on other hosts"), said.npos);
  EXPECT_NE(said.find("x lost a rank in 2 starts; there are no spare hosts for it"), said.npos);
}

}  // namespace
}  // namespace trireme::train
