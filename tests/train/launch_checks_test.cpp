// Checks that all ranks make together: one that finds something wrong stops all.
#include "train/launch_checks.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "../scratch_folder.hpp"
#include "core/files.hpp"
#include "train/collective.hpp"

namespace trireme::train {
namespace {

class LaunchChecksTest : public testing::Test {
 protected:
  /// The exit code and message with which `check` ends on this rank.
  template <typename Check>
  std::pair<ExitCode, std::string> outcome(Check&& check) {
    try {
      check();
      return {ExitCode::success, ""};
    } catch (const CollectiveError& error) {
      return {error.code(), error.what()};
    }
  }

  bool last() const { return world_->rank() == world_->size() - 1; }

  std::unique_ptr<comm::MpiCommunicator> world_ = comm::MpiCommunicator::world();
  ScratchFolder scratch_;
};

TEST_F(LaunchChecksTest, OneComplaintStopsAllRanks) {
  refuse(*world_, ExitCode::io, "");
  const auto [code, message] =
      outcome([&] { refuse(*world_, ExitCode::io, last() ? "no disk" : ""); });
  EXPECT_EQ(code, ExitCode::io);
  const std::string rank = std::to_string(world_->size() - 1);
  if (world_->size() > 1)
    EXPECT_EQ(message.find("rank " + rank + " on "), 0u) << message;
  else
    EXPECT_EQ(message, "no disk");
  EXPECT_NE(message.find("no disk"), std::string::npos);
  const auto all = outcome([&] { refuse(*world_, ExitCode::io, "no disk"); }).second;
  EXPECT_EQ(all.find("(and 1 more rank)") != std::string::npos, world_->size() == 2) << all;
}

TEST_F(LaunchChecksTest, OneBuildIsFine) { EXPECT_NO_THROW(check_same_build(*world_)); }

TEST_F(LaunchChecksTest, AnotherDeckOnOneRankIsRefused) {
  const std::string path = (scratch_.path() / "deck.yaml").string();
  write_file_atomically(path, "a: 1\n");
  EXPECT_NO_THROW(check_same_deck(*world_, path, {"b=2"}));
  if (world_->size() == 1) return;
  if (last()) write_file_atomically(path, "a: 2\n");
  const auto [code, message] = outcome([&] { check_same_deck(*world_, path, {"b=2"}); });
  EXPECT_EQ(code, ExitCode::deck);
  EXPECT_NE(message.find("line 1 is 'a: 2' there and 'a: 1' on rank 0"), std::string::npos)
      << message;
  const auto words = outcome([&] { check_same_deck(*world_, "", {last() ? "b=3" : "b=2"}); });
  EXPECT_EQ(words.first, ExitCode::deck);
}

TEST_F(LaunchChecksTest, AFolderThatOneRankDoesNotSeeIsRefused) {
  if (world_->size() == 1) GTEST_SKIP() << "one rank sees what it writes";
  // A folder of each rank's own under one name, as local disks have it; then one for all.
  const std::string shared = broadcast_text(*world_, scratch_.path().string());
  // What a start that was killed has left.
  if (world_->rank() == 0) write_file_atomically(scratch_.path() / ".seen-01234567", "");
  EXPECT_NO_THROW(check_shared_folder(*world_, shared));
  EXPECT_TRUE(world_->rank() != 0 || std::filesystem::is_empty(shared)) << "the token is left";
  const auto [code, message] =
      outcome([&] { check_shared_folder(*world_, scratch_.path().string()); });
  EXPECT_EQ(code, ExitCode::io);
  EXPECT_EQ(message.find("rank 1 on "), 0u) << message;
  EXPECT_NE(message.find("does not see the run folder"), std::string::npos) << message;
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
  world_->barrier();
}

}  // namespace
}  // namespace trireme::train
