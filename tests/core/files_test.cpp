#include "core/files.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "../file_size_limit.hpp"
#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "core/error.hpp"

namespace trireme {
namespace {

class FilesTest : public testing::Test {
 protected:
  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

TEST_F(FilesTest, AtomicWriteReplacesAndLeavesNoPart) {
  write_file_atomically(folder_ / "a", "one");
  write_file_atomically(folder_ / "a", std::string("two\0three", 9));
  EXPECT_EQ(read_file(folder_ / "a"), std::string("two\0three", 9));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.part"));
}

TEST_F(FilesTest, ReadsNotMuchMoreThanIsEnough) {
  const std::string content(1 << 20, 'x');
  write_file_atomically(folder_ / "a", content);
  EXPECT_EQ(read_file(folder_ / "a", content.size()), content);
  EXPECT_GT(read_file(folder_ / "a", 100).size(), 100u);
  EXPECT_LT(read_file(folder_ / "a", 100).size(), content.size());
}

TEST_F(FilesTest, AFailedAtomicWriteLeavesNoPart) {
  std::filesystem::create_directories(folder_ / "taken" / "inside");
  EXPECT_THROW(write_file_atomically(folder_ / "taken", "x"), IoError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "taken.part"));
  const FileSizeLimit limit(100);
  EXPECT_THROW(write_file_atomically(folder_ / "a", std::string(200, 'x')), IoError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.part"));
}

TEST_F(FilesTest, AnAtomicWriteFollowsNoLink) {
  write_file_atomically(folder_ / "target", "keep");
  std::filesystem::create_symlink(folder_ / "target", folder_ / "a.part");
  write_file_atomically(folder_ / "a", "new");
  EXPECT_EQ(read_file(folder_ / "target"), "keep");
  EXPECT_EQ(read_file(folder_ / "a"), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ / "a"));
}

TEST_F(FilesTest, AnAtomicWriteReplacesNoDevice) {
  const std::filesystem::path fifo = folder_ / "fifo", link = folder_ / "link";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink(fifo, link);
  for (const std::filesystem::path& path : {fifo, link}) {
    EXPECT_EQ(message_of<IoError>([&] { write_file_atomically(path, "x"); }),
              "cannot write '" + path.string() + "': it is a device or a FIFO; name a file");
    EXPECT_TRUE(std::filesystem::is_fifo(path));
    EXPECT_FALSE(std::filesystem::exists(path.string() + ".part"));
  }
  // Whatever it is: /dev/stdout may be a link to a regular file.
  EXPECT_NO_THROW(refuse_device(folder_ / "new"));
  EXPECT_NO_THROW(refuse_device("/dev/shm/new"));
  EXPECT_THROW(refuse_device("/dev/stdout"), IoError);
  EXPECT_THROW(refuse_device("/dev/../dev/./new"), IoError);
}

TEST_F(FilesTest, OnlyRegularFilesOfAnExpectedSizeAreInput) {
  write_file_atomically(folder_ / "a", "hello");
  EXPECT_EQ(read_regular_file(folder_ / "a", 5), "hello");
  const auto message = [&](const std::filesystem::path& path, std::size_t limit = 100) {
    return message_of<IoError>([&] { read_regular_file(path, limit); });
  };
  EXPECT_EQ(message(folder_ / "a", 4), "'" + (folder_ / "a").string() +
                                           "' is too large: more than 4 B are not read from such "
                                           "a file");
  const std::filesystem::path fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(message(fifo), "'" + fifo.string() + "' is not a regular file but a FIFO");
  EXPECT_EQ(message(folder_),
            "'" + folder_.string() + "' is not a regular file but a folder: name a file in it");
  EXPECT_EQ(message("/dev/zero"), "'/dev/zero' is not a regular file but a device");
  EXPECT_THROW(MappedFile{fifo}, IoError);
  EXPECT_THROW(require_regular_file(fifo), IoError);
  require_regular_file(folder_ / "a");
}

TEST_F(FilesTest, ErrorsNameTheFile) {
  try {
    read_file(folder_ / "absent");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("absent': No such file"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.code(), ExitCode::io);
  }
  EXPECT_THROW(write_file_atomically(folder_ / "no" / "such", "x"), IoError);
}

TEST_F(FilesTest, MapsWholeFilesAndEmptyOnes) {
  write_file_atomically(folder_ / "a", "hello");
  write_file_atomically(folder_ / "empty", "");
  MappedFile map(folder_ / "a");
  ASSERT_EQ(map.size(), 5u);
  EXPECT_EQ(std::memcmp(map.data(), "hello", 5), 0);
  EXPECT_EQ(MappedFile(folder_ / "empty").size(), 0u);
  EXPECT_THROW(MappedFile{folder_}, IoError);
}

TEST(HumanBytes, Scales) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(4096), "4.0 KiB");
  EXPECT_EQ(human_bytes(1.5 * 1024 * 1024 * 1024), "1.5 GiB");
}

class ReadFileTest : public testing::Test {
 protected:
  void SetUp() override { write_file_atomically(path_, std::string(10'000, 'a')); }

  const ScratchFolder scratch_;
  const std::filesystem::path path_ = scratch_.path() / "tokens.bin";
};

TEST_F(ReadFileTest, ReadsAnyPart) {
  const ReadFile file(path_);
  EXPECT_EQ(file.size(), 10'000u);
  std::string part(100, ' ');
  file.read(9'900, part.data(), part.size());
  EXPECT_EQ(part, std::string(100, 'a'));
  file.require_unchanged();
}

TEST_F(ReadFileTest, NamesAFileThatWasCut) {
  const ReadFile file(path_);
  std::filesystem::resize_file(path_, 9'950);
  std::string part(100, ' ');
  file.read(0, part.data(), part.size());
  EXPECT_EQ(message_of<IoError>([&] { file.read(9'900, part.data(), part.size()); }),
            "'" + path_.string() +
                "' ends at byte 9950: it had 10000 when it was opened, and has been cut since");
  EXPECT_EQ(message_of<IoError>([&] { file.require_unchanged(); }),
            "'" + path_.string() + "' has 9950 bytes; it had 10000 when it was opened");
}

TEST_F(ReadFileTest, NoticesOtherContentOfTheSameSize) {
  const ReadFile file(path_);
  std::filesystem::last_write_time(
      path_, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(1));
  EXPECT_EQ(message_of<IoError>([&] { file.require_unchanged(); }),
            "'" + path_.string() + "' has been written to since it was opened");
}

TEST_F(ReadFileTest, RefusesWhatIsNoFile) {
  EXPECT_THROW(ReadFile(scratch_.path() / "absent"), IoError);
  EXPECT_THROW(ReadFile(scratch_.path()), IoError);
}

// The kernel tells of a mapped file that was cut by SIGBUS alone.
TEST_F(ReadFileTest, AMappedFileThatWasCutIsNamed) {
  EXPECT_EXIT(
      {
        const MappedFile file(path_);
        std::filesystem::resize_file(path_, 0);
        volatile char byte = static_cast<char>(file.data()[5'000]);
        (void)byte;
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::io)), "cannot read '.*tokens.bin'");
}

TEST_F(ReadFileTest, OtherBusErrorsAreWhatTheyWere) {
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);  // a sanitizer has a handler of its own
        const MappedFile file(path_);
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

class TemporaryFolderTest : public testing::Test {
 protected:
  void SetUp() override { ::setenv("TMPDIR", scratch_.path().c_str(), 1); }
  void TearDown() override {
    if (before_)
      ::setenv("TMPDIR", before_->c_str(), 1);
    else
      ::unsetenv("TMPDIR");
  }

 private:
  const ScratchFolder scratch_;
  const std::optional<std::string> before_ = std::getenv("TMPDIR") != nullptr
                                                 ? std::optional<std::string>(std::getenv("TMPDIR"))
                                                 : std::nullopt;

 protected:
  const std::filesystem::path parent_ = scratch_.path();
};

TEST_F(TemporaryFolderTest, GoesWithAllThatIsInIt) {
  std::optional<TemporaryFolder> folder(std::in_place, "name");
  const TemporaryFolder other("name");
  const std::filesystem::path path = folder->path();
  EXPECT_EQ(path.parent_path(), parent_);
  EXPECT_TRUE(path.filename().string().starts_with("name-"));
  EXPECT_NE(path, other.path());
  write_file_atomically(path / "file", "text");
  TemporaryFolder moved = std::move(*folder);
  folder.reset();
  EXPECT_TRUE(std::filesystem::exists(path / "file"));
  moved = TemporaryFolder("name");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::is_directory(moved.path()));
  EXPECT_TRUE(std::filesystem::is_directory(other.path()));
}

TEST_F(TemporaryFolderTest, SaysWhereItCannotBeMade) {
  ::setenv("TMPDIR", (parent_ / "missing").c_str(), 1);
  const std::string message = message_of<IoError>([] { const TemporaryFolder folder("name"); });
  EXPECT_NE(message.find("missing/name-"), std::string::npos) << message;
  EXPECT_NE(message.find("No such file or directory"), std::string::npos) << message;
}

}  // namespace
}  // namespace trireme
