// What decides about a run folder before there is any checkpoint.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "../../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "decks.hpp"
#include "train/startup/startup.hpp"

namespace {
int flock_error = 0;  ///< what every lock fails with, as on a file system that has none
}

extern "C" int flock(int file, int operation) noexcept {
  if (flock_error == 0) return static_cast<int>(::syscall(SYS_flock, file, operation));
  errno = flock_error;
  return -1;
}

namespace trireme::train {
namespace {

class FolderTest : public testing::Test {
 protected:
  ScratchFolder scratch_;
  std::filesystem::path run_ = scratch_.path() / "run";

  template <typename Error>
  static std::string message_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

TEST_F(FolderTest, OneRunAtATime) {
  std::optional<FolderLock> first(run_);
  EXPECT_EQ(message_of<IoError>([&] { FolderLock second(run_); }),
            "another run is using the run folder '" + run_.string() +
                "'; wait for it, or choose another run.output");
  FolderLock elsewhere(scratch_.path() / "other");
  first.reset();
  EXPECT_NO_THROW(FolderLock third(run_));
}

TEST_F(FolderTest, StaysLockedWithoutItsFile) {
  const FolderLock first(run_);
  std::filesystem::remove(run_ / ".lock");
  EXPECT_NO_THROW(first.check());
  EXPECT_NE(message_of<IoError>([&] { FolderLock second(run_); }).find("another run is using"),
            std::string::npos);
  EXPECT_NE(message_of<IoError>([&] { first.check(); }).find(".lock' was replaced"),
            std::string::npos);
}

TEST_F(FolderTest, ARunNoticesThatItsFolderIsAnother) {
  const FolderLock first(run_);
  std::filesystem::rename(run_, scratch_.path() / "renamed");
  const std::string message = "' was renamed, deleted or replaced";
  EXPECT_NE(message_of<IoError>([&] { first.check(); }).find(run_.string() + message),
            std::string::npos);
  const FolderLock second(run_);
  EXPECT_NO_THROW(second.check());
  EXPECT_NE(message_of<IoError>([&] { first.check(); }).find(run_.string() + message),
            std::string::npos);
  std::filesystem::remove_all(run_);
  std::filesystem::rename(scratch_.path() / "renamed", run_);
  EXPECT_NO_THROW(first.check());
}

TEST_F(FolderTest, WaitsForARunThatIsAboutToEnd) {
  std::optional<FolderLock> ending(run_);
  const auto end = std::async([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ending.reset();
  });
  EXPECT_NO_THROW(FolderLock next(run_));
}

TEST_F(FolderTest, AFileSystemWithoutLocksIsNoObstacle) {
  for (const int error : {ENOSYS, EOPNOTSUPP, ENOLCK}) {
    flock_error = error;
    EXPECT_EQ(message_of<IoError>([&] { EXPECT_FALSE(FolderLock(run_).holds()); }),
              "nothing was thrown");
  }
  flock_error = EIO;
  EXPECT_NE(message_of<IoError>([&] { FolderLock lock(run_); }).find("cannot lock"),
            std::string::npos);
  flock_error = 0;
  EXPECT_TRUE(FolderLock(run_).holds());
}

TEST_F(FolderTest, LockSaysWhyItCannotBeTaken) {
  write_file_atomically(run_, "a file");
  EXPECT_NE(message_of<IoError>([&] { FolderLock lock(run_); }).find(run_.string()),
            std::string::npos);
}

TEST_F(FolderTest, FreshWithoutCheckpoints) {
  for (const char* restart : {"latest", "never"}) {
    const RestartPoint point = find_restart(tiny_deck(run_), restart);
    EXPECT_FALSE(point.checkpoint.has_value());
    EXPECT_EQ(point.progress.iteration, 0);
    EXPECT_TRUE(point.notes.empty());
  }
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(FolderTest, NamedCheckpointMustExist) {
  const std::string absent = (scratch_.path() / "absent").string();
  EXPECT_THROW(find_restart(tiny_deck(run_), absent), IoError);
  EXPECT_THROW(find_restart(tiny_deck(run_, {"checkpoint.load=" + absent}), "latest"), IoError);
}

TEST_F(FolderTest, NeverMovesAnOldRunToTheFirstFreeName) {
  for (const std::string expected : {"run.1", "run.2"}) {
    std::filesystem::create_directories(run_);
    write_file_atomically(run_ / "metrics.jsonl", expected);
    const RestartPoint point = find_restart(tiny_deck(run_), "never");
    ASSERT_EQ(point.notes.size(), 1u);
    EXPECT_EQ(point.notes[0],
              "moved the old run folder to '" + (scratch_.path() / expected).string() + "'");
    EXPECT_FALSE(std::filesystem::exists(run_));
    EXPECT_EQ(read_file(scratch_.path() / expected / "metrics.jsonl"), expected);
  }
}

TEST_F(FolderTest, NeverMovesCheckpointsWithoutALog) {
  std::filesystem::create_directories(run_ / "checkpoints");
  EXPECT_EQ(find_restart(tiny_deck(run_), "never").notes.size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(scratch_.path() / "run.1" / "checkpoints"));
}

TEST_F(FolderTest, NeverLeavesARunningRunAlone) {
  const FolderLock running(run_);
  write_file_atomically(run_ / "metrics.jsonl", "");
  EXPECT_THROW(find_restart(tiny_deck(run_), "never"), IoError);
  EXPECT_TRUE(std::filesystem::exists(run_ / "metrics.jsonl"));
}

}  // namespace
}  // namespace trireme::train
