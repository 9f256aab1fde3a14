#include "sweep/state.hpp"

#include <optional>

#include "deck/describe.hpp"
#include "sweeps.hpp"
#include "train/startup/restart.hpp"

namespace trireme::sweep {
namespace {

class StateTest : public SweepTest {
 protected:
  /// What a run leaves that ended with `code`, or is not over yet.
  void leave(const PlannedRun& run, std::optional<int> code) const {
    write(run.folder / "deck.yaml", deck::print_deck(run.deck));
    write(run.folder / "metrics.jsonl",
          "{\"kind\":\"start\"}\n" +
              (code ? fmt::format("{{\"kind\":\"stop\",\"exit_code\":{}}}\n", *code) : ""));
  }

  static std::string state(const PlannedSweep& sweep, std::size_t index, const Queue& queue = {}) {
    const Status status = status_of(sweep, index, queue);
    return name_of(status.state) + (status.note.empty() ? "" : ": " + status.note);
  }
};

TEST_F(StateTest, FromWhatRunsLeave) {
  const PlannedSweep sweep = plan();
  leave(sweep.runs[0], 0);
  leave(sweep.runs[1], 75);
  leave(sweep.runs[2], std::nullopt);
  EXPECT_EQ(state(sweep, 0), "finished");
  EXPECT_EQ(state(sweep, 1), "stopped");
  EXPECT_EQ(state(sweep, 2), "killed");
  EXPECT_EQ(state(sweep, 3), "waiting");
  write(exit_code_path(sweep, sweep.runs[3]), "74\n");
  EXPECT_EQ(state(sweep, 3), "failed: exit code 74");
  leave(sweep.runs[3], 0);
  EXPECT_EQ(state(sweep, 3), "finished") << "started by hand after the sweep's own start failed";
}

TEST_F(StateTest, RunsThatGoOn) {
  const PlannedSweep sweep = plan();
  leave(sweep.runs[0], 75);
  {
    const train::FolderLock trainer(sweep.runs[0].folder);
    EXPECT_EQ(state(sweep, 0), "running");
  }
  EXPECT_EQ(state(sweep, 0), "stopped");
  const Queue queue{{1, State::running}, {2, State::queued}};
  EXPECT_EQ(state(sweep, 0, queue), "running");
  EXPECT_EQ(state(sweep, 1, queue), "queued");
  EXPECT_FALSE(is_to_do(State::queued));
}

TEST_F(StateTest, FinishedUnderAnotherDeck) {
  for (const PlannedRun& run : plan().runs) leave(run, 0);
  EXPECT_EQ(state(plan({"train.iterations=200"}), 0),
            "changed: schedule.decay was 100 iterations, train.iterations was 100");
  EXPECT_EQ(state(plan({"log.every=1"}), 0), "finished");
  EXPECT_EQ(state(plan({"model.layers=4"}), 0), "changed: model.layers was 2");
  // Nothing to go on from: it can be trained afresh. With a checkpoint the trainer would refuse.
  write(plan().runs[1].folder / "checkpoints" / "latest", "step-00000001.h5");
  try {
    const PlannedSweep sweep = plan({"model.layers=4"});
    refuse_other_run(sweep, sweep.runs[1]);
    ADD_FAILURE();
  } catch (const DeckError& error) {
    EXPECT_EQ(std::string(error.what())
                  .find((scratch_ / "out").string() +
                        "/tensor=1,peak=2e-3: trained with model.layers = 2, "
                        "which is 4 now; move the folder away to train "
                        "afresh\n"),
              0);
  }
}

TEST_F(StateTest, FinishedOnGpusAndSeenFromElsewhere) {
  PlannedSweep sweep = plan({"run.device=auto"});
  PlannedRun& run = sweep.runs[0];
  const deck::Deck here = run.deck;
  run.deck = run_deck(sweep, run.swept, deck::Device::cuda, /*need_data=*/false);
  EXPECT_EQ(run.deck.precision.compute, deck::Compute::bf16);
  leave(run, 0);
  run.deck = here;
  EXPECT_EQ(state(sweep, 0), "finished");
}

TEST_F(StateTest, TooLargeUnlessItWasRunElsewhere) {
  const CheckOptions options{.to_run = false, .machine = Machine{.cores = 1, .host_bytes = ~0ull}};
  const PlannedSweep sweep = plan({}, options);
  EXPECT_EQ(state(sweep, 2), "too large: 2 ranks, but 1 core");
  EXPECT_FALSE(is_to_do(State::too_large));
  leave(sweep.runs[2], 0);
  EXPECT_EQ(state(sweep, 2), "finished");
}

}  // namespace
}  // namespace trireme::sweep
