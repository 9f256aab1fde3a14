#include "core/read_file.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <string>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme {
namespace {

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

}  // namespace
}  // namespace trireme
