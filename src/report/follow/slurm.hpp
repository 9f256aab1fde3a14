// The job of a run, as Slurm knows it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "report/follow/verdicts.hpp"

namespace trireme::report {

/// A job and its files.
struct SlurmJob {
  JobState state;
  std::filesystem::path directory, out, err;  ///< WorkDir, StdOut, StdErr
};

/// Whether `text` has the form of a job's number: "123", "123_4" of an array, "123+0" of a
/// heterogeneous job.
bool is_job_id(std::string_view text);

/// The job in the output of `scontrol show job -o`. Throws DataError with that output when it shows
/// no job, and names the way out when it shows all of an array.
SlurmJob parse_job(const std::string& id, const std::string& output);

/// Asks `scontrol`. Throws IoError when it cannot be run, DataError when it knows no such job.
SlurmJob find_job(const std::string& id);

/// The run folder that the job's standard output names last. Throws DataError when it names none.
std::filesystem::path run_folder_of(const SlurmJob& job);

}  // namespace trireme::report
