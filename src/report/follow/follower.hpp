// Follows a run by the files in its folder and, where it is a job, by Slurm.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/follow/rank_output.hpp"
#include "report/follow/verdicts.hpp"

namespace trireme::report {

/// A job and its files.
struct SlurmJob {
  JobState state;
  std::filesystem::path directory, out, err;  ///< WorkDir, StdOut, StdErr
};

/// Whether `text` has the form of a job id: "123", "123_4" of an array, "123+0" of a
/// heterogeneous job.
bool is_job_id(std::string_view text);

/// The job in the output of `scontrol show job -o`. Throws DataError with that output when it shows
/// no job, and names the way out when it shows all of an array.
SlurmJob parse_job(const std::string& id, const std::string& output);

/// Asks `scontrol`. Throws IoError when it cannot be run, DataError when it knows no such job.
SlurmJob find_job(const std::string& id);

/// The run folder that the job's standard output names last. Throws DataError when it names none.
std::filesystem::path run_folder_of(const SlurmJob& job);

// ---------------------------------------------------------------------------- the run

/// The requested deck, with which the effective one is compared.
struct AskedDeck {
  std::filesystem::path path;
  std::vector<std::string> overrides;
};

/// What to follow.
struct FollowTarget {
  std::filesystem::path folder;    ///< the run folder
  std::string job = {};            ///< Slurm's job id, or ""
  std::optional<AskedDeck> asked;  ///< else the one in the run's start line
  std::string version = {};        ///< of this program
};

/// The target that `words` name: a run folder, or a job id, whose folder is found by its output.
/// Throws UsageError, IoError, DataError.
FollowTarget find_target(const std::string& words);

/// Reads a run repeatedly.
class Follower {
 public:
  /// Throws IoError when the folder is no run folder.
  explicit Follower(FollowTarget target);

  /// Reads the new lines. Throws IoError when a file cannot be read.
  Page look();

 private:
  /// Adds a file of output of ranks or Slurm.
  void watch_output(const std::filesystem::path& path);
  std::optional<JobState> look_up_job();
  void read_metrics();
  void read_output();
  Verdict compare_decks() const;
  std::vector<std::string> notes() const;

  FollowTarget target_;
  LineFile metrics_;
  RunState run_;
  std::map<std::string, LineFile> output_files_;  ///< by name
  RankOutput output_;
};

}  // namespace trireme::report
