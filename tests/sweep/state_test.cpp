#include "sweep/sweep.hpp"

#include <optional>

#include "deck/load.hpp"
#include "sweeps.hpp"
#include "train/startup/startup.hpp"

namespace trireme::sweep {
namespace {

class StateTest : public SweepTest {
 protected:
  /// What a run leaves that ended with `code`, or is not over yet.
  void leave(const PlannedRun& run, std::optional<int> code,
             const std::string& reason = "finished") const {
    write(run.folder / "deck.yaml", deck::print_deck(run.deck));
    write(run.folder / "metrics.jsonl",
          "{\"kind\":\"start\"}\n" +
              (code ? fmt::format("{{\"kind\":\"stop\",\"reason\":\"{}\",\"exit_code\":{}}}\n",
                                  reason, *code)
                    : ""));
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

TEST_F(StateTest, RunsThatTheirDeckStopsContinue) {
  const PlannedSweep sweep = plan();
  leave(sweep.runs[0], 0, "train.exit_interval is reached");
  EXPECT_EQ(state(sweep, 0), "stopped");
}

TEST_F(StateTest, DivergedRunsAreNotRestarted) {
  const PlannedSweep sweep = plan();
  for (const PlannedRun& run : sweep.runs) leave(run, 76);
  write(exit_code_path(sweep, sweep.runs[0]), "76\n");
  EXPECT_EQ(state(sweep, 0), "diverged");
  EXPECT_EQ(state(sweep, 1), "diverged") << "under Slurm there is no file of the launcher's";
  EXPECT_FALSE(is_to_do(State::diverged));
  // Another deck may not diverge.
  EXPECT_EQ(state(plan({"optimizer.clip=0.5"}), 0), "changed: optimizer.clip was 1");
  EXPECT_TRUE(is_to_do(State::changed));
}

TEST_F(StateTest, RunsThatContinue) {
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
  // Nothing to resume from: it can be trained afresh. With a checkpoint the trainer would refuse.
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

std::string train(int iteration, double ms, double loss) {
  return fmt::format(
      "{{\"kind\":\"train\",\"iteration\":{},\"loss\":{},\"global_batch\":8,\"ms\":{},"
      "\"tokens_per_second\":{},\"mfu\":null}}\n",
      iteration, loss, ms, 1e6 / ms);
}

using FiguresTest = SweepTest;

TEST_F(FiguresTest, MediansLeaveWarmUpOut) {
  write(scratch_ / "metrics.jsonl",
        "{\"kind\":\"start\",\"iteration\":0}\n" + train(1, 900, 5) + train(2, 10, 4) +
            "{\"kind\":\"start\",\"iteration\":2}\n" + train(3, 800, 3) + train(4, 20, 2) +
            train(5, 40, 1.5) +
            "{\"kind\":\"eval\",\"split\":\"valid\",\"loss\":1.75}\n"
            "{\"kind\":\"eval\",\"split\":\"test\",\"loss\":9}\n"
            "{\"kind\":\"memory\",\"peak_bytes\":300,\"gpu_bytes\":200}\n"
            "{\"kind\":\"stop\",\"exit_code\":75}\n"
            "{\"kind\":\"tra");
  const Figures figures = read_figures(scratch_);
  EXPECT_TRUE(figures.started);
  EXPECT_EQ(figures.exit_code, 75);
  EXPECT_EQ(figures.iteration, 5);
  EXPECT_EQ(figures.loss, 1.5);
  EXPECT_EQ(figures.valid_loss, 1.75);
  EXPECT_EQ(figures.ms, 20);
  EXPECT_EQ(figures.samples_per_second, 400);
  EXPECT_EQ(figures.tokens_per_second, 5e4);
  EXPECT_EQ(figures.mfu, std::nullopt);
  EXPECT_EQ(figures.memory_bytes, 200);
}

TEST_F(FiguresTest, OneLineIsBetterThanNone) {
  write(scratch_ / "metrics.jsonl",
        "{\"kind\":\"stop\",\"exit_code\":0}\n{\"kind\":\"start\"}\n" + train(1, 30, 5));
  const Figures figures = read_figures(scratch_);
  EXPECT_EQ(figures.ms, 30);
  EXPECT_EQ(figures.exit_code, std::nullopt) << "started again since";
}

TEST_F(FiguresTest, NoMetricsAndNoSense) {
  EXPECT_FALSE(read_figures(scratch_ / "absent").started);
  write(scratch_ / "metrics.jsonl",
        "[]\n3\n{}\n{\"kind\":7}\n{\"kind\":\"train\",\"ms\":\"x\",\"loss\":null}\n");
  const Figures figures = read_figures(scratch_);
  EXPECT_FALSE(figures.started);
  EXPECT_EQ(figures.ms, std::nullopt);
}

}  // namespace

}  // namespace trireme::sweep
