// The state of each run of a sweep and its figures, read from what the run and its launcher wrote,
// so that a sweep may be killed at any moment; and both as tables.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "sweep/runs.hpp"

namespace trireme::sweep {

/// A run in figures; those that its metrics do not give are absent.
struct Figures {
  bool started = false;              ///< there is a start event
  std::optional<int> exit_code;      ///< of the stop event, unless the run was started again since
  std::int64_t iteration = 0;        ///< the last one reported
  std::optional<double> loss;        ///< the last one reported
  std::optional<double> valid_loss;  ///< of the newest evaluation
  /// Medians over the training lines, without the first after each start (warm-up) where there are
  /// others.
  std::optional<double> ms;  ///< per iteration
  std::optional<double> samples_per_second;
  std::optional<double> tokens_per_second;
  std::optional<double> mfu;  ///< 0 to 1
  /// The highest peak of a rank: on its GPU, or else of the host's memory.
  std::optional<double> memory_bytes;
};

/// Reads the metrics of a run folder. A file that is not there, and lines that are no JSON objects
/// (the last one may be under way), count as nothing.
Figures read_figures(const std::filesystem::path& run_folder);

/// Where a run stands.
enum class State {
  waiting,    ///< never started
  queued,     ///< in Slurm's queue
  running,    ///< a process holds its folder, or Slurm runs it
  stopped,    ///< early, with exit code 75
  killed,     ///< ended without an exit code
  diverged,   ///< with exit code 76: the same deck would diverge again
  failed,     ///< ended with another exit code
  changed,    ///< finished or diverged, with a deck that has changed since
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
/// seed or data than the run's deck. The trainer would refuse to resume from them.
void refuse_other_run(const PlannedSweep& sweep, const PlannedRun& run);

/// Whether a process of this machine trains in `run_folder` right now.
bool is_in_use(const std::filesystem::path& run_folder);

/// Where the output and the exit code of a run's launcher go.
std::filesystem::path output_path(const PlannedSweep& sweep, const PlannedRun& run);
std::filesystem::path exit_code_path(const PlannedSweep& sweep, const PlannedRun& run);

/// The status of every run, in order.
std::vector<Status> all_statuses(const PlannedSweep& sweep, const Queue& queue = {});

/// "6 runs: 3 finished, 1 failed, 2 waiting".
std::string count_line(const std::vector<Status>& statuses);

/// A line for each run: name, state, iterations, loss; then count_line().
std::string status_text(const PlannedSweep& sweep, const std::vector<Status>& statuses);

/// What is planned: a line for each run with its ranks, memory and state, and its command.
std::string plan_text(const PlannedSweep& sweep, const std::vector<Status>& statuses,
                      const std::vector<std::string>& commands);

/// Columns that another source adds to a table, by the name of a run.
struct ExtraColumns {
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  ///< name, then its cells
};

/// Reads a CSV file whose first column is the name of a run and whose first line has the names of
/// the columns; lines that begin with '#' are left out. `source` is what errors name. Throws
/// DataError with the line when a row has another number of cells or a name no run has.
ExtraColumns read_extra_columns(const std::string& text, const std::string& source,
                                const PlannedSweep& sweep);

/// A row for each run: name, state, the keys that the sweep sets, losses, median milliseconds per
/// iteration, throughput, MFU, peak memory of the rank with the highest as used and as planned;
/// then the columns of `extra`.
std::string table(const PlannedSweep& sweep, const std::vector<Status>& statuses,
                  TableFormat format, const ExtraColumns& extra = {});

}  // namespace trireme::sweep
