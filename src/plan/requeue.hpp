// When a job script takes a run that was killed for one that stopped early: the lines of bash that
// printed jobs and the jobs of sweeps share. jobs/common/job.sh has the same for those of jobs/.
#pragma once

#include <string>

namespace trireme::plan {

/// Lines that define `newest_checkpoint` and keep what it prints before the run in `before`;
/// `run_folder` is a word of bash.
std::string note_checkpoint_lines(const std::string& run_folder);

/// Lines that make `code`, the exit code, 75 where a signal ended a rank and this start of the run
/// has written a checkpoint: started again the run gets further, so that a job is not queued twice
/// for the same iteration. The signals are those that a fault or the kernel sends: SIGABRT (134),
/// SIGBUS (135), SIGKILL (137, memory among its reasons) and SIGSEGV (139).
std::string killed_rank_lines();

}  // namespace trireme::plan
