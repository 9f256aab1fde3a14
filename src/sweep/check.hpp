// From a deck with a sweep section to runs that can start: all of them checked and planned, or one
// error with everything that is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "deck/sweep.hpp"
#include "plan/fit.hpp"
#include "sweep/machine.hpp"

namespace trireme::sweep {

/// What to check, and against what.
struct CheckOptions {
  /// The runs are to start: datasets must be there, and folders hold nothing of other runs.
  bool to_run = true;
  std::optional<Machine> machine;  ///< that the runs must fit; nothing when another runs them
  std::optional<int> max_ranks;    ///< see why_unfit()
  /// The memory that a run of a deck finds where it will start: a run that does not fit is an
  /// error. Empty: not known.
  std::function<std::optional<plan::MemoryThere>(const deck::Deck&)> memory = {};
};

/// One run, ready to start.
struct PlannedRun {
  deck::SweepRun swept;
  deck::Deck deck;  ///< with parallel.data resolved
  std::filesystem::path folder;
  Need need;
  std::optional<std::string> unfit;  ///< why the machine cannot run it

  const std::string& name() const { return swept.name; }
};

/// A sweep, ready to start.
struct PlannedSweep {
  std::filesystem::path deck_path;
  std::string deck_text;
  std::filesystem::path folder;  ///< run.output of the deck: the runs' folders are inside of it
  deck::Sweep section;
  std::vector<PlannedRun> runs;

  /// The folder of what the sweep itself writes: outputs, the list of a Slurm array.
  std::filesystem::path own_folder() const { return folder / "sweep"; }
};

/// The deck of one run, checked, with parallel.data resolved and its own run.output. `automatic` is
/// what `run.device: auto` stands for. Throws DeckError.
deck::Deck run_deck(const PlannedSweep& sweep, const deck::SweepRun& run, deck::Device automatic,
                    bool need_data);

/// Expands, checks and plans a sweep. Throws DeckError with every error of every run, each said
/// once with the runs that have it; IoError when the deck cannot be read. Writes nothing.
PlannedSweep plan_sweep(const std::filesystem::path& deck_path,
                        const std::vector<std::string>& overrides, const CheckOptions& options);

}  // namespace trireme::sweep
