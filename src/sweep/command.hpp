// The command of a run, as words and as a line for a shell.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sweep/check.hpp"

namespace trireme::sweep {

/// What starts the ranks on this machine: a rank that waits for a core waits beside others.
inline constexpr const char* kMpirun = "mpirun --oversubscribe --bind-to none -n {ranks}";
/// What starts them inside a Slurm job. The first rank that leaves with 75 must not have the others
/// killed, whose 137 would then be the run's exit code; one that dies ends them in half a minute.
inline constexpr const char* kSrun = "srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 -n {ranks}";

/// How the runs are started.
struct Launch {
  std::filesystem::path program;  ///< trireme-pretrain
  std::filesystem::path deck;     ///< that the runs read, usually deck_copy()
  std::string launcher;           ///< words with {ranks}
  bool alone_on_one_rank = true;  ///< a run of one rank needs no launcher
};

/// Throws DeckError when a run of several ranks has a launcher that is not told how many.
void check_launch(const PlannedSweep& sweep, const Launch& launch);

/// Where a copy of the deck is kept while its runs go on: editing the deck does not change them.
std::filesystem::path deck_copy(const PlannedSweep& sweep);

/// Launcher, program, deck, the overrides that make it the run's.
std::vector<std::string> run_words(const PlannedSweep& sweep, const PlannedRun& run,
                                   const Launch& launch);

/// Words as a shell cuts a line, without their quotes.
std::vector<std::string> words_of(std::string_view line);

/// The words as a shell reads them, quoted where they must be.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace trireme::sweep
