// Planning all runs before any starts, and the commands that start them.
#include "sweep/sweep.hpp"

#include "deck/value.hpp"
#include "sweeps.hpp"

namespace trireme::sweep {
namespace {

TEST_F(SweepTest, PlansEveryRun) {
  const PlannedSweep sweep = plan();
  ASSERT_EQ(sweep.runs.size(), 4);
  EXPECT_EQ(sweep.folder, scratch_ / "out");
  const PlannedRun& last = sweep.runs[3];
  EXPECT_EQ(last.name(), "tensor=2,peak=2e-3");
  EXPECT_EQ(last.folder, scratch_ / "out" / "tensor=2,peak=2e-3");
  EXPECT_EQ(last.deck.run.output, last.folder.string());
  EXPECT_EQ(last.deck.schedule.peak, 2e-3);
  EXPECT_EQ(last.deck.parallel.data, 1);
  EXPECT_EQ(last.need.ranks, 2);
  EXPECT_GT(sweep.runs[0].need.bytes, last.need.bytes);
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out")) << "planning wrote something";
}

TEST_F(SweepTest, RanksOfDataThatIsAuto) {
  const PlannedSweep sweep = plan({"sweep.ranks=4"});
  EXPECT_EQ(sweep.runs[0].need.ranks, 4);
  EXPECT_EQ(sweep.runs[0].deck.parallel.data, 4);
  EXPECT_EQ(sweep.runs[2].deck.parallel.data, 2);
  EXPECT_EQ(plan({"sweep.ranks=4", "parallel.data=1"}).runs[2].need.ranks, 2);
}

TEST_F(SweepTest, AllErrorsOfAllRunsTogether) {
  EXPECT_EQ(errors({"sweep.parallel.tensor=[1, 3, 5]", "sweep.schedule.peak=[1e-3, high]",
                    "optimizer.beta1=2"}),
            "--set optimizer.beta1=2: optimizer.beta1 = 2: must be from 0 to below 1\n"
            "--set sweep.schedule.peak=[1e-3, high]: schedule.peak = high: expected a number (run "
            "'tensor=1,peak=high' and 2 more)\n"
            "--set sweep.parallel.tensor=[1, 3, 5]: parallel.tensor = 3 does not divide "
            "model.heads = 4 (try 1, 2 or 4) (run 'tensor=3,peak=1e-3' and 1 more)\n"
            "--set sweep.parallel.tensor=[1, 3, 5]: parallel.tensor = 5 does not divide "
            "model.heads = 4 (try 1, 2 or 4) (run 'tensor=5,peak=1e-3' and 1 more)\n");
}

TEST_F(SweepTest, ErrorsNameThePlaceInTheDeck) {
  write(deck_path_, std::string(kDeck) + "  cases: {wide: {model: {hidden: 65}}}\n");
  EXPECT_EQ(errors({"sweep.parallel.tensor=", "sweep.schedule.peak=", "schedule.peak=1"}),
            "lr.yaml:9:26: model.heads = 4 does not divide model.hidden = 65 (try 1, 5, 13 or "
            "65)\n");
}

TEST_F(SweepTest, DataIsLookedForWhereRunsStart) {
  EXPECT_EQ(errors({"schedule.peak="}),
            "--set schedule.peak=: the sweep sets schedule.peak "
            "itself; change it there\n");
  EXPECT_EQ(
      errors({}, {.to_run = true}),
      "lr.yaml: data.train, the prefix of a dataset that trireme-preprocess writes: cannot open "
      "'none.idx': No such file or directory\n");
}

TEST_F(SweepTest, CheckpointsToLoadAreLookedForBeforeAnyRunStarts) {
  const std::string out = (scratch_ / "out").string();
  const auto missing = [&](const std::string& path) {
    return "lr.yaml: there is no checkpoint '" + path +
           "': name a run folder, or a file such as RUN/checkpoints/step-00001000.h5";
  };
  const std::string absent = errors({"checkpoint.load=absent"}, {.to_run = true});
  EXPECT_EQ(absent, missing("absent") + "\n") << "said once";
  // The second run loads what the first one writes; the third one loads its own folder.
  write(deck_path_, std::string(kDeck).substr(0, std::string(kDeck).find("sweep:")) +
                        "sweep: {cases: {a: {}, b: {checkpoint.load: " + out +
                        "/a}, c: {checkpoint.load: " + out + "/c}}}\n");
  const std::string text = errors({"schedule.peak=1"}, {.to_run = true});
  EXPECT_NE(text.find(missing("out/c") + " (run 'c')"), std::string::npos) << text;
  EXPECT_EQ(text.find("out/a"), std::string::npos) << text;
  EXPECT_EQ(errors({"schedule.peak=1"}), "") << "only looked at";
}

TEST_F(SweepTest, RunsThatTheMachineCannotRun) {
  const CheckOptions options{.to_run = false,
                             .machine = Machine{.cores = 1, .host_bytes = std::size_t{1} << 40}};
  const PlannedSweep sweep = plan({}, options);
  EXPECT_EQ(sweep.runs[0].unfit, std::nullopt);
  EXPECT_EQ(sweep.runs[2].unfit, "2 ranks, but 1 core");
}

TEST_F(SweepTest, RunsThatDoNotFitWhereTheyStart) {
  CheckOptions options{.to_run = false};
  options.memory = [](const deck::Deck&) {
    return plan::AvailableMemory{std::size_t{1} << 20, "that a host has (--memory)"};
  };
  const std::string text = errors({}, options);
  EXPECT_EQ(text.find("lr.yaml: does not fit: the rank needs "), 0u) << text;
  EXPECT_NE(text.find(" of the 1.0 MiB that a host has (--memory); "), std::string::npos) << text;
  options.memory = [](const deck::Deck&) {
    return plan::AvailableMemory{std::size_t{1} << 40, "that a host has (--memory)"};
  };
  EXPECT_EQ(plan({}, options).runs.size(), 4u);
  options.memory = [](const deck::Deck&) -> plan::AvailableMemory {
    throw UsageError("--memory 0: expected a size");
  };
  EXPECT_THROW(plan({}, options), UsageError) << "no run's deck is to blame";
}

TEST_F(SweepTest, CommandsOfRuns) {
  const PlannedSweep sweep = plan({"run.name=a b"});
  const Launch launch{.program = "bin/trireme-pretrain", .deck = "lr.yaml", .launcher = kMpirun};
  const std::string out = (scratch_ / "out").string();
  EXPECT_EQ(shell_line(run_words(sweep, sweep.runs[0], launch)),
            "bin/trireme-pretrain lr.yaml sweep= 'run.name=a b' parallel.tensor=1 "
            "schedule.peak=1e-3 run.output=" +
                out + "/tensor=1,peak=1e-3");
  EXPECT_EQ(shell_line(run_words(sweep, sweep.runs[2], launch)),
            "mpirun --oversubscribe --bind-to none -n 2 bin/trireme-pretrain lr.yaml sweep= "
            "'run.name=a b' parallel.tensor=2 schedule.peak=1e-3 run.output=" +
                out + "/tensor=2,peak=1e-3");
  EXPECT_EQ(deck_copy(sweep), scratch_ / "out" / "sweep" / "lr.yaml");
}

TEST_F(SweepTest, CommandsNameFoldersThatYamlWouldMisread) {
  for (const char* folder : {"runs/exp #3", "a: b", "[a]"}) {
    const PlannedSweep sweep = plan({deck::text_override("run.output", folder)});
    for (const PlannedRun& run : sweep.runs)
      EXPECT_EQ(run_words(sweep, run, {}).back(),
                fmt::format("run.output=\"{}/{}\"", folder, run.name()));
  }
}

TEST_F(SweepTest, LauncherMustBeToldTheRanks) {
  const PlannedSweep sweep = plan();
  EXPECT_NO_THROW(check_launch(sweep, {.launcher = "mpirun -n {ranks}"}));
  try {
    check_launch(sweep, {.launcher = "mpirun -n 2"});
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_EQ(
        std::string(error.what())
            .find("sweep.launcher = mpirun -n 2: nothing says how many ranks to start; write "
                  "{ranks} where the number goes, as in 'mpirun --oversubscribe --bind-to none -n "
                  "{ranks}'\n"),
        0);
  }
}

TEST(Words, AreCutAsAShellDoes) {
  EXPECT_EQ(words_of("  a 'b c'  d=\"e f\"g '' "),
            (std::vector<std::string>{"a", "b c", "d=e fg", ""}));
}

TEST(ShellLine, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(shell_line({"a=1", "b c", "it's", "", "$x", "[1,2]"}),
            "a=1 'b c' \"it's\" '' \"\\$x\" '[1,2]'");
}

}  // namespace
}  // namespace trireme::sweep
