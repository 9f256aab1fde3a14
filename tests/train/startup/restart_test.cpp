// Where a run starts when there are checkpoints: written by all ranks, decided on by rank 0.
#include "train/startup/startup.hpp"

#include <gtest/gtest.h>

#include "../../scratch_folder.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/file.hpp"
#include "core/error.hpp"
#include "deck/load.hpp"
#include "decks.hpp"
#include "train/run_state.hpp"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

class RestartTest : public testing::Test {
 protected:
  void SetUp() override {
    // All ranks write to the folder of rank 0.
    run_ = on_rank_zero(*world_, [&] { return (scratch_.path() / "run").string(); });
    other_ = run_.parent_path() / "other";
  }
  void TearDown() override { world_->barrier(); }

  bool decides() const { return world_->rank() == 0; }

  /// Saves a checkpoint of one small tensor, as a run in `folder` would at `iteration`.
  fs::path save(const fs::path& folder, std::int64_t iteration,
                const std::string& train_documents = "", const std::string& train_tokens = "",
                std::int64_t abandoned = 0) {
    const fs::path path = checkpoint::step_path(folder / "checkpoints", iteration);
    float value = 1.0f;
    checkpoint::LocalTensor tensor{.name = "model/scale", .shape = {1}};
    if (decides()) tensor.pieces.push_back({.slabs = {{0, 1, 0, 1}}, .data = &value});
    const RunState state{.iteration = iteration,
                         .consumed_samples = 4 * iteration,
                         .applied_iterations = iteration,
                         .applied_samples = 4 * iteration,
                         .abandoned = abandoned,
                         .train_documents = train_documents,
                         .train_tokens = train_tokens};
    checkpoint::save(path, *world_, state.attributes(), deck::print_deck(tiny_deck(folder)),
                     {tensor});
    return path;
  }

  std::unique_ptr<comm::MpiCommunicator> world_ = comm::MpiCommunicator::world();
  ScratchFolder scratch_;
  fs::path run_, other_;
};

TEST_F(RestartTest, SaysWhyItIsNotTheNewestOfANamedFolder) {
  const fs::path older = save(other_, 10);
  const fs::path newer = save(other_, 20);
  if (!decides()) return;
  fs::resize_file(newer, 100);
  const std::string load = "checkpoint.load=" + other_.string();
  for (const RestartPoint& point : {find_restart(tiny_deck(run_), other_.string()),
                                    find_restart(tiny_deck(run_, {load}), "latest")}) {
    EXPECT_EQ(point.checkpoint, older);
    ASSERT_EQ(point.notes.size(), 1u);
    EXPECT_NE(point.notes[0].find("using 'step-00000010.h5'"), std::string::npos) << point.notes[0];
  }
}

TEST_F(RestartTest, CheckpointsThatARunWentBackFromAreDeleted) {
  for (const bool keeps : {true, false}) {
    const fs::path folder = run_ / (keeps ? "some" : "all");
    save(folder, 20);
    save(folder, 30);
    save(folder, 40);
    const fs::path rewound = save(folder, 10, "", "", /*abandoned=*/35);
    if (!decides()) continue;
    const deck::Deck deck = keeps ? tiny_deck(folder, {"checkpoint.keep=2"}) : tiny_deck(folder);
    RestartPoint point = find_restart(deck, "latest");
    ASSERT_EQ(point.checkpoint, rewound);
    supersede_newer(deck, point);
    const auto steps = checkpoint::list_steps(folder / "checkpoints");
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0].path, rewound);
    const auto is_superseded = [&](std::int64_t iteration) {
      return fs::exists(checkpoint::step_path(folder / "checkpoints", iteration).string() +
                        ".superseded");
    };
    EXPECT_EQ(is_superseded(20), !keeps);
    EXPECT_EQ(is_superseded(30), !keeps);
    EXPECT_TRUE(is_superseded(40));
  }
}

TEST_F(RestartTest, CheckpointsSinceARunWentBackAreKeptAsSuperseded) {
  const fs::path rewound = save(run_, 10, "", "", /*abandoned=*/35);
  const fs::path newer = save(run_, 20);
  if (!decides()) return;
  const deck::Deck deck = tiny_deck(run_, {"checkpoint.keep=2"});
  RestartPoint point = find_restart(deck, rewound.string());
  supersede_newer(deck, point);
  EXPECT_TRUE(fs::exists(newer.string() + ".superseded"));
}

TEST_F(RestartTest, LatestOfTheRunComesBeforeTheDecksCheckpoint) {
  const fs::path loaded = save(other_, 5);
  const std::string load = "checkpoint.load=" + other_.string();
  if (decides()) {
    const RestartPoint point = find_restart(tiny_deck(run_, {load}), "latest");
    EXPECT_EQ(point.checkpoint, loaded);
    EXPECT_EQ(point.progress.iteration, 5);
  }
  const fs::path own = save(run_, 20);
  if (!decides()) return;
  const RestartPoint point = find_restart(tiny_deck(run_, {load}), "latest");
  EXPECT_EQ(point.checkpoint, own);
  EXPECT_EQ(point.progress.iteration, 20);
  EXPECT_EQ(find_restart(tiny_deck(run_, {load}), "never").checkpoint, loaded);
}

TEST_F(RestartTest, NeverMovesNothingWhenTheRunCannotStart) {
  save(run_, 10);
  const std::string load = "checkpoint.load=" + save(other_, 5).string();
  if (!decides()) return;
  EXPECT_THROW(find_restart(tiny_deck(run_, {"checkpoint.load=absent"}), "never"), IoError);
  EXPECT_THROW(find_restart(tiny_deck(run_, {load, "model.heads=4"}), "never"), DeckError);
  EXPECT_TRUE(fs::exists(run_));
  EXPECT_FALSE(fs::exists(run_.string() + ".1"));
}

TEST_F(RestartTest, NeverMayLoadFromTheFolderThatItMoves) {
  const fs::path own = save(run_, 10);
  if (!decides()) return;
  const fs::path written_with_a_slash = run_ / "";
  const RestartPoint point =
      find_restart(tiny_deck(written_with_a_slash, {"checkpoint.load=" + own.string()}), "never");
  EXPECT_FALSE(fs::exists(run_));
  const fs::path moved = run_.string() + ".1";
  EXPECT_EQ(point.checkpoint, moved / "checkpoints" / own.filename());
  EXPECT_TRUE(fs::exists(*point.checkpoint));
  EXPECT_EQ(point.progress.iteration, 10);
  ASSERT_EQ(point.notes.size(), 1u);
  EXPECT_EQ(point.notes[0], "moved the old run folder to '" + moved.string() + "'");
}

TEST_F(RestartTest, NotesWhatChangesTheCourseOfTraining) {
  save(run_, 10);
  if (!decides()) return;
  const RestartPoint point =
      find_restart(tiny_deck(run_, {"schedule.weight_decay.type=linear", "log.every=3"}), "latest");
  ASSERT_EQ(point.notes.size(), 1u);
  EXPECT_EQ(point.notes[0],
            "changed: schedule.weight_decay.type: constant in the checkpoint, linear now");
}

TEST_F(RestartTest, NotesTheRateAndTheDecayThatChangedKeysLeadTo) {
  save(run_, 50);
  if (!decides()) return;
  const auto last_note = [&](const std::vector<std::string>& changes) {
    const auto notes = find_restart(tiny_deck(run_, changes), "latest").notes;
    return notes.empty() ? "" : notes.back();
  };
  // The schedule decays to 0 within 100 iterations of 4 samples; the checkpoint has seen 200.
  EXPECT_EQ(last_note({}), "");
  EXPECT_EQ(last_note({"batch.global=2"}),
            "changed: the learning rate after iteration 50: 0.0005 by the checkpoint's deck, 0 by "
            "this one (its schedule counts samples)");
  EXPECT_EQ(last_note({"batch.global=8"}),
            "changed: the learning rate after iteration 50: 0.0005 by the checkpoint's deck, "
            "0.0008536 by this one (its schedule counts samples)");
  EXPECT_EQ(last_note({"batch.global=2", "train.iterations=200"}),
            "changed: train.iterations: 100 in the checkpoint, 200 now");
  // A ramp of the weight decay ends with the run.
  EXPECT_EQ(last_note({"schedule.weight_decay={end: 0.11, type: linear}"}),
            "changed: the weight decay after iteration 50: 0.01 by the checkpoint's deck, 0.06 by "
            "this one (its schedule counts samples)");
}

TEST_F(RestartTest, RefusesAllImmutableKeysTogether) {
  const fs::path path = save(run_, 10);
  if (!decides()) return;
  for (const std::string& restart : {std::string("latest"), path.string()}) {
    try {
      find_restart(tiny_deck(run_, {"model.heads=4", "run.seed=5", "data.seed=1234"}), restart);
      FAIL();
    } catch (const DeckError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("model.heads = 4, but the checkpoint was written with 2"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("run.seed = 5, but the checkpoint was written with 1234"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("2 errors; nothing was started."), std::string::npos) << text;
    }
  }
}

TEST_F(RestartTest, RefusesOtherDocumentsUnderTheSameName) {
  const fs::path path = save(run_, 10, "documents");
  if (!decides()) return;
  EXPECT_TRUE(find_restart(tiny_deck(run_), "latest", {"documents"}).notes.empty());
  const std::string load = "checkpoint.load=" + path.string();
  for (const auto& [deck, restart] : {std::pair{tiny_deck(run_), "latest"},
                                      {tiny_deck(other_, {load}), "latest"},
                                      {tiny_deck(run_, {load}), "never"}}) {
    try {
      find_restart(deck, restart, {"others"});
      FAIL();
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with("data.train has other documents than those that '" +
                                   path.string() + "' was trained on, under the same name"))
          << text;
    }
  }
  EXPECT_TRUE(fs::exists(path));

  const RestartPoint renamed =
      find_restart(tiny_deck(run_, {"data.train=b"}), "latest", {"others"});
  ASSERT_EQ(renamed.notes.size(), 2u);
  EXPECT_EQ(renamed.notes[0], "changed: data.train: corpus in the checkpoint, b now");
  EXPECT_EQ(renamed.notes[1], "changed: the documents of data.train");
  const RestartPoint moved =
      find_restart(tiny_deck(run_, {"data.train=b"}), "latest", {"documents"});
  EXPECT_EQ(moved.notes.size(), 1u);
}

TEST_F(RestartTest, RefusesOtherTokensInDocumentsOfTheSameLengths) {
  const fs::path path = save(run_, 10, "documents", "sample aa bb; all cc dd");
  if (!decides()) return;
  const TrainingData same{"documents", "sample aa bb", {"a.bin", "b.bin"}};
  EXPECT_TRUE(find_restart(tiny_deck(run_), "latest", same).notes.empty());
  const auto refused = [&](const std::string& tokens) -> std::string {
    try {
      find_restart(tiny_deck(run_), "latest", {"documents", tokens, {"a.bin", "b.bin"}});
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(refused("sample aa bc")
                  .starts_with("'b.bin' holds other tokens than those that '" + path.string() +
                               "' was trained on"))
      << refused("sample aa bc");
  EXPECT_TRUE(refused("sample aa bb; all ce dd").starts_with("'a.bin' holds other tokens"));
  EXPECT_EQ(refused("sample aa bb; all cc dd"), "");
  const RestartPoint renamed = find_restart(tiny_deck(run_, {"data.train=b"}), "latest",
                                            {"documents", "sample aa bc", {"a.bin", "b.bin"}});
  EXPECT_EQ(renamed.notes.size(), 2u);
}

TEST_F(RestartTest, CheckpointsThatNameNoDocumentsResumeWithAny) {
  save(run_, 10);
  save(other_, 0, "documents");
  if (!decides()) return;
  EXPECT_TRUE(find_restart(tiny_deck(run_), "latest", {"others"}).notes.empty());
  EXPECT_TRUE(find_restart(tiny_deck(other_), "latest", {"others"}).notes.empty());
}

TEST_F(RestartTest, SaysWhyItIsNotWhatLatestNames) {
  const fs::path older = save(run_, 10);
  const fs::path newer = save(run_, 20);
  if (!decides()) return;
  fs::resize_file(newer, fs::file_size(newer) / 2);
  const RestartPoint point = find_restart(tiny_deck(run_), "latest");
  EXPECT_EQ(point.checkpoint, older);
  EXPECT_EQ(point.progress.iteration, 10);
  ASSERT_EQ(point.notes.size(), 1u);
  EXPECT_NE(point.notes[0].find(newer.string()), std::string::npos) << point.notes[0];
  EXPECT_NE(point.notes[0].find("using 'step-00000010.h5'"), std::string::npos) << point.notes[0];
  fs::resize_file(older, 100);
  EXPECT_THROW(find_restart(tiny_deck(run_), "latest"), DataError);
}

}  // namespace
}  // namespace trireme::train
