#include "report/reporter.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "../scratch_folder.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"

namespace trireme::report {
namespace {

deck::Hooks hooks_of(const std::optional<std::string>& checkpoint,
                     const std::optional<std::string>& stop = {},
                     const std::optional<std::string>& fault = {}, double seconds = 60) {
  return {.checkpoint = checkpoint,
          .stop = stop,
          .fault = fault,
          .timeout = {.value = seconds, .unit = deck::Unit::seconds}};
}

/// A checkpoint that is there.
constexpr const char* kCheckpoint = "/dev/null";

/// Longer than any hook of these tests takes on a busy machine, in seconds.
constexpr double kPatience = 100;

/// The file's content when it has a whole line; what there is of it after kPatience.
std::string wait_for(const std::filesystem::path& path) {
  const Stopwatch watch;
  std::string text;
  while (!text.ends_with('\n') && watch.seconds() < kPatience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (std::filesystem::exists(path)) text = read_file(path);
  }
  return text;
}

/// The first messages of the hooks.
std::vector<std::string> wait_for_messages(Hooks& hooks) {
  const Stopwatch watch;
  std::vector<std::string> said;
  while (said.empty() && watch.seconds() < kPatience) said = hooks.poll();
  return said;
}

TEST(Hooks, GetWhatTheEventSays) {
  const ScratchFolder folder;
  const std::string path = (folder.path() / "a 'b'.h5").string();
  write_file_atomically(path, "");
  ::setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  {
    Hooks hooks(hooks_of("echo \"$TRIREME_EVENT $TRIREME_ITERATION $TRIREME_PATH "
                         "${OMPI_COMM_WORLD_RANK-none}\" >>\"$TRIREME_RUN/said\"",
                         "echo \"$TRIREME_EVENT $TRIREME_ITERATION $TRIREME_REASON "
                         "$TRIREME_EXIT_CODE\" >>\"$TRIREME_RUN/said\""),
                folder.path());
    hooks.checkpoint(100, path);
    hooks.stop(120, "a \"signal\"; $(false)", 75);
  }  // waits for both, one after the other
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(read_file(folder.path() / "said"),
            "checkpoint 100 " + path + " none\nstop 120 a \"signal\"; $(false) 75\n");
}

TEST(Hooks, FailuresAreOneMessageEach) {
  const ScratchFolder folder;
  Hooks hooks(hooks_of("echo printed; exit 3"), folder.path());
  hooks.checkpoint(1, kCheckpoint);
  const std::vector<std::string> said = wait_for_messages(hooks);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0], "hooks.checkpoint failed with exit code 3 (its output is in " +
                         (folder.path() / "hooks.log").string() + "): echo printed; exit 3");
  EXPECT_EQ(read_file(folder.path() / "hooks.log"), "printed\n");
}

TEST(Hooks, CodesOfTimeoutsAreFailuresBeforeTheLimit) {
  const ScratchFolder folder;
  for (const auto& [command, code] : {std::pair("exit 124", 124), std::pair("kill -9 $$", 137)}) {
    Hooks hooks(hooks_of(command), folder.path());
    hooks.checkpoint(1, kCheckpoint);
    const std::vector<std::string> said = wait_for_messages(hooks);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find(fmt::format("failed with exit code {}", code)), std::string::npos)
        << said[0];
  }
}

TEST(Hooks, FailuresAtTheEndAreSaid) {
  const ScratchFolder folder;
  testing::internal::CaptureStderr();
  {
    Hooks hooks(hooks_of("exit 3", "exit 4"), folder.path());
    hooks.checkpoint(1, kCheckpoint);
    hooks.stop(1, "finished", 0);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: hooks.checkpoint failed with exit code 3"), std::string::npos)
      << said;
  EXPECT_NE(said.find("warning: hooks.stop failed with exit code 4"), std::string::npos) << said;
}

TEST(Hooks, StopDoesNotWaitForHooksThatOutliveTheRun) {
  const ScratchFolder folder;
  testing::internal::CaptureStderr();
  {
    Hooks hooks(hooks_of("until [ -e \"$TRIREME_RUN/stopped\" ]; do sleep 0.01; done; "
                         "echo \"$TRIREME_ITERATION\" >>\"$TRIREME_RUN/said\"",
                         "touch \"$TRIREME_RUN/stopped\""),
                folder.path(), /*seconds_at_end=*/0);
    for (const int iteration : {2, 4, 6}) hooks.checkpoint(iteration, kCheckpoint);
    hooks.stop(6, "finished", 0);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: hooks.checkpoint still runs\n"
            "warning: hooks.checkpoint did not run for 2 checkpoints of iterations 4 to 6: the run "
            "ended while an earlier hook ran\n");
  EXPECT_EQ(wait_for(folder.path() / "said"), "2\n");
}

TEST(Hooks, DoNotRunForDeletedCheckpoints) {
  const ScratchFolder folder;
  const std::string gone = (folder.path() / "gone.h5").string();
  const std::string reason = ": deleted, as by checkpoint.keep, while an earlier hook ran";
  Hooks hooks(hooks_of("echo \"$TRIREME_ITERATION\""), folder.path());
  for (const int iteration : {2, 3}) hooks.checkpoint(iteration, gone);
  hooks.checkpoint(4, kCheckpoint);
  EXPECT_EQ(
      hooks.poll(),
      std::vector{"hooks.checkpoint did not run for 2 checkpoints of iterations 2 to 3" + reason});
  hooks.checkpoint(5, gone);
  EXPECT_EQ(wait_for_messages(hooks),
            std::vector{"hooks.checkpoint did not run for the checkpoint of iteration 5" + reason});
  EXPECT_EQ(read_file(folder.path() / "hooks.log"), "4\n");
}

TEST(Hooks, AreNotWaitedFor) {
  const ScratchFolder folder;
  // Ends after the event that comes after checkpoint() and poll().
  Hooks hooks(hooks_of("until [ -e \"$TRIREME_RUN/go\" ]; do sleep 0.01; done; "
                       "echo went >\"$TRIREME_RUN/said\""),
              folder.path());
  hooks.checkpoint(1, kCheckpoint);
  EXPECT_TRUE(hooks.poll().empty());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "said"));
  write_file_atomically(folder.path() / "go", "");
  EXPECT_EQ(wait_for(folder.path() / "said"), "went\n");
}

TEST(Hooks, EndAtTheirLimit) {
  const ScratchFolder folder;
  Hooks hooks(hooks_of("sleep 600", {}, {}, 0.3), folder.path());
  hooks.checkpoint(1, kCheckpoint);
  const std::vector<std::string> said = wait_for_messages(hooks);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("took longer than hooks.timeout"), std::string::npos) << said[0];
}

constexpr const char* kSayFault =
    "echo \"$TRIREME_ITERATION|$TRIREME_REASON|$TRIREME_EXIT_CODE\" >\"$TRIREME_RUN/fault\"";

TEST(Hooks, RunAfterAnError) {
  const ScratchFolder folder;
  Hooks hooks(hooks_of({}, {}, kSayFault), folder.path());
  hooks.note(7);
  hooks.fault("a disk\nis full", 74);
  EXPECT_EQ(wait_for(folder.path() / "fault"), "7|a disk is full|74\n");
}

TEST(Hooks, RunAfterTheProcessWasKilled) {
  const ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    Hooks hooks(hooks_of({}, {}, kSayFault), folder.path());
    hooks.note(9);
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(wait_for(folder.path() / "fault"),
            "9|rank 0 was killed, or ended by the error that it printed|\n");
}

TEST(Hooks, NoFaultAfterAStop) {
  const ScratchFolder folder;
  { Hooks(hooks_of({}, {}, kSayFault), folder.path()).stop(3, "finished", 0); }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "fault"));
}

}  // namespace
}  // namespace trireme::report
