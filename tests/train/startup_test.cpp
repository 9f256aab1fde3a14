#include "train/startup.hpp"

#include <gtest/gtest.h>

#include "../scratch_folder.hpp"
#include "core/files.hpp"
#include "deck/describe.hpp"
#include "decks.hpp"

namespace trireme::train {
namespace {

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
