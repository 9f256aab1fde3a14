#include "report/run_files.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "event_decoder.hpp"

namespace trireme::report {
namespace {

TEST(EventFile, HoldsWhatWasWritten) {
  const ScratchFolder folder;
  EventFile file(folder.path() / "tensorboard", 1);
  file.scalar("train/loss", 1, 7.625, 1.5e9);
  file.scalar("train/loss", 300'000'000'000, -0.125, 1.5e9 + 0.25);
  file.scalar("x", 3, std::numeric_limits<double>::quiet_NaN(), 0);

  const auto events = decode_event_file(read_file(file.path()));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.7e9);
  EXPECT_FALSE(events[0].value);
  EXPECT_EQ(events[1].tag, "train/loss");
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].value, 7.625f);
  EXPECT_EQ(events[1].wall_time, 1.5e9);
  EXPECT_EQ(events[2].step, 300'000'000'000);
  EXPECT_EQ(events[2].value, -0.125f);
  EXPECT_EQ(events[2].wall_time, 1.5e9 + 0.25);
  EXPECT_TRUE(std::isnan(events[3].value.value()));
}

TEST(EventFile, FirstScalarByteForByte) {
  const ScratchFolder folder;
  EventFile file(folder.path(), 1);
  const std::size_t header = read_file(file.path()).size();
  file.scalar("a", 2, 1.0, 1.0);
  const std::string record = read_file(file.path()).substr(header);
  EXPECT_EQ(record.substr(0, 8), std::string("\x17\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 23),
            std::string("\x09\0\0\0\0\0\0\xf0\x3f"                       // wall time 1.0
                        "\x10\x02"                                       // step 2
                        "\x2a\x0a\x0a\x08\x0a\x01\x61\x15\0\0\x80\x3f",  // "a" = 1.0f
                        23));
}

TEST(EventFile, MarksARestart) {
  const ScratchFolder folder;
  EventFile file(folder.path(), 100);
  file.begin_at(11, 5.0);
  const auto events = decode_event_file(read_file(file.path()));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].step, 11);
  EXPECT_EQ(events[1].session_status, 1);
}

TEST(EventFile, FlushesEverySoManyScalarsAndAtTheEnd) {
  const ScratchFolder folder;
  std::filesystem::path path;
  {
    EventFile file(folder.path(), 3);
    path = file.path();
    const auto events = [&] { return decode_event_file(read_file(path)).size(); };
    for (int step = 1; step <= 2; ++step) file.scalar("a", step, 0, 0);
    EXPECT_EQ(events(), 1u);
    file.scalar("a", 3, 0, 0);
    EXPECT_EQ(events(), 4u);
    file.scalar("a", 4, 0, 0);
    file.flush();
    EXPECT_EQ(events(), 5u);
    file.scalar("a", 5, 0, 0);
  }
  EXPECT_EQ(decode_event_file(read_file(path)).size(), 6u);
  EXPECT_THROW(EventFile(folder.path(), 0), InternalError);
}

TEST(EventFile, NamesAreTensorBoardsAndDiffer) {
  const ScratchFolder folder;
  const EventFile first(folder.path(), 1), second(folder.path(), 1);
  EXPECT_NE(first.path(), second.path());
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string name = first.path().filename().string();
  EXPECT_EQ(name.find("events.out.tfevents.1"), 0u) << name;
  EXPECT_EQ(name.substr(30).find(fmt::format(".{}.{}", host, ::getpid())), 0u) << name;
}

}  // namespace
}  // namespace trireme::report
