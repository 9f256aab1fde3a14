#include "train/startup/startup.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "../../scratch_folder.hpp"
#include "core/files.hpp"
#include "deck/load.hpp"
#include "decks.hpp"

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

class StartupTest : public testing::Test {
 protected:
  std::unique_ptr<comm::MpiCommunicator> world_ = comm::MpiCommunicator::world();
  ScratchFolder scratch_;
};

TEST_F(StartupTest, TextOfRankZeroReachesAll) {
  const std::string text = on_rank_zero(*world_, [&] {
    EXPECT_EQ(world_->rank(), 0);
    return std::string("of rank 0\n") + std::string(100'000, 'x');
  });
  EXPECT_EQ(text, "of rank 0\n" + std::string(100'000, 'x'));
  EXPECT_EQ(on_rank_zero(*world_, [] { return std::string(); }), "");
}

TEST_F(StartupTest, ErrorOfRankZeroIsThrownByAll) {
  try {
    on_rank_zero(*world_, []() -> std::string { throw DataError("bad file {}", 7); });
    FAIL();
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_STREQ(error.what(), "bad file 7");
  }
  try {
    on_rank_zero(*world_, []() -> std::string { throw std::runtime_error("unexpected"); });
    FAIL();
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    EXPECT_STREQ(error.what(), "unexpected");
  }
}

TEST_F(StartupTest, DeckIsTheSameOnAllRanks) {
  const std::string path = (scratch_.path() / "tiny.yaml").string();
  if (world_->rank() == 0) write_file_atomically(path, kTinyDeck);  // the others have no file
  const PreparedDeck prepared = prepare_deck(
      *world_, path, {"data.tokenizer.type=bytes", "model.vocab=", "schedule.peak=0.1"},
      deck::resolve_world_size);
  EXPECT_EQ(prepared.vocabulary.size, 257);
  EXPECT_EQ(prepared.vocabulary.eod, 256);
  EXPECT_EQ(prepared.deck.parallel.data, world_->size());
  EXPECT_EQ(prepared.deck.schedule.peak, 0.1);
  const std::string printed = deck::print_deck(prepared.deck);
  EXPECT_EQ(on_rank_zero(*world_, [&] { return printed; }), printed);
}

TEST_F(StartupTest, DeckErrorsAreThrownByAll) {
  const std::string path = (scratch_.path() / "tiny.yaml").string();
  const auto prepare = [&](const std::string& override) -> ExitCode {
    try {
      prepare_deck(*world_, path, {override}, deck::resolve_world_size);
    } catch (const CollectiveError& error) {
      return error.code();
    }
    return ExitCode::success;
  };
  EXPECT_EQ(prepare("run.seed=1"), ExitCode::io);  // there is no file yet
  if (world_->rank() == 0) write_file_atomically(path, kTinyDeck);
  EXPECT_EQ(prepare("run.seed=1"), ExitCode::success);
  EXPECT_EQ(prepare("run.sed=1"), ExitCode::deck);
  EXPECT_EQ(prepare("parallel.data=7"), ExitCode::deck);
}

}  // namespace
}  // namespace trireme::train
