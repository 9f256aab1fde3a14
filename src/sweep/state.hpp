// Where each run of a sweep stands, read from what it and its launcher left behind: nothing is
// remembered elsewhere, so that a sweep may be killed at any moment.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "sweep/check.hpp"
#include "sweep/figures.hpp"

namespace trireme::sweep {

/// Where a run stands.
enum class State {
  waiting,    ///< never started
  queued,     ///< in Slurm's queue
  running,    ///< a process holds its folder, or Slurm runs it
  stopped,    ///< early, with exit code 75
  killed,     ///< ended without a word
  failed,     ///< ended with another exit code
  changed,    ///< finished, but the deck asks for something else now
  finished,   ///< with exit code 0
  too_large,  ///< not started: needs more than this machine has
};

/// "waiting", "too large", ...
const char* name_of(State state);

/// Whether a sweep that is started now runs it.
bool is_to_do(State state);

/// A run's state, a word more where there is one ("exit code 74"), and its figures.
struct Status {
  State state = State::waiting;
  std::string note;
  Figures figures;
};

/// What Slurm has of a sweep: the state of each task by the run's number, from 1.
using Queue = std::map<int, State>;

/// The status of run `index` (from 0).
Status status_of(const PlannedSweep& sweep, std::size_t index, const Queue& queue = {});

/// Throws DeckError when the run's folder holds checkpoints of another run: with another model,
/// seed or data than the run's deck. The trainer would refuse to go on from them.
void refuse_other_run(const PlannedSweep& sweep, const PlannedRun& run);

/// Whether a process of this machine trains in `run_folder` right now.
bool is_in_use(const std::filesystem::path& run_folder);

/// Where the output and the exit code of a run's launcher go.
std::filesystem::path output_path(const PlannedSweep& sweep, const PlannedRun& run);
std::filesystem::path exit_code_path(const PlannedSweep& sweep, const PlannedRun& run);

}  // namespace trireme::sweep
