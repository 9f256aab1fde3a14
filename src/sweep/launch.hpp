// Starts the runs of a sweep: on this machine, or as Slurm arrays, one array for the runs of each
// number of ranks.
//
// Under Slurm the sweep's own folder gets `runs.txt`, whose n-th line is the name and the command
// of run n, and `job.sbatch`, which runs the line of its array task. Slurm's queue is queried by
// the job's name, which follows from the sweep's folder: submitted jobs are recorded nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sweep/runs.hpp"
#include "sweep/state.hpp"

namespace trireme::sweep {

/// Runs what is not finished and fits, in order, and prints a line when a run starts or ends. A run
/// of GPUs gets its own ones; a run whose folder another process holds waits for it. SIGUSR1,
/// SIGTERM and SIGINT are passed on as SIGUSR1, on which runs save and stop. Returns success when
/// all runs that fit are finished, failure when one failed or diverged, else stopped_early: call
/// again. The caller holds the sweep's folder.
ExitCode run_locally(const PlannedSweep& sweep, const Machine& machine, const Launch& launch,
                     int jobs);

/// "lr-1a2b3c4d": the deck's name and a checksum of the folder's path.
std::string job_name(const PlannedSweep& sweep);

/// The text of `runs.txt`.
std::string run_list(const PlannedSweep& sweep, const Launch& launch);

/// The text of `job.sbatch`. A task that is told to stop before its time limit, or is preempted,
/// passes that on and is put into the queue again when the run ends with exit code 75; a task that
/// was cancelled is not.
std::string job_script(const PlannedSweep& sweep);

/// The words of the sbatch commands that submit the runs `tasks` (from 1). `words` are further ones
/// for sbatch; at most `jobs` tasks of an array run at a time.
std::vector<std::vector<std::string>> sbatch_commands(const PlannedSweep& sweep,
                                                      const std::vector<int>& tasks,
                                                      std::optional<std::int64_t> jobs,
                                                      const std::string& words);

/// The tasks of this sweep that Slurm has. Empty when the sweep was never submitted or there is no
/// Slurm; throws IoError when squeue fails and `must_answer`.
Queue read_queue(const PlannedSweep& sweep, bool must_answer);

/// Writes list, script and the copy of the deck, submits what is not finished and not in the queue,
/// and returns what to print. Throws IoError when sbatch refuses, DeckError when tasks in the queue
/// belong to a sweep that has changed since. The caller holds the sweep's folder.
std::string submit(const PlannedSweep& sweep, const Launch& launch,
                   std::optional<std::int64_t> jobs, const std::string& words);

/// What submit() would write and do.
std::string submission_text(const PlannedSweep& sweep, const Launch& launch,
                            std::optional<std::int64_t> jobs, const std::string& words);

}  // namespace trireme::sweep
