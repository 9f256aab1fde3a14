// What 'trireme-report follow' shows of a run (the answers to four questions, and the page), and
// how it finds and reads the run: by the files in its folder and, where it is a job, by Slurm.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "report/follow/rank_output.hpp"
#include "report/follow/run_state.hpp"

namespace trireme::report {

enum class Judgement { well, bad, unknown };

/// An answer, and why.
struct Verdict {
  Judgement judgement = Judgement::unknown;
  std::string reason = {};
};

/// Whether a process holds the lock of the run folder. `free` only on the run's first host: not
/// every file system shows locks to other hosts.
enum class Lock { held, free, unknown };

/// Slurm's state of the run's job.
struct JobState {
  std::string id;
  std::string state;   ///< "RUNNING", "PENDING", "COMPLETED", ...
  std::string reason;  ///< "Resources", "None", ...
};

/// The state of the run's processes, which its lines do not tell.
struct ProcessState {
  double now = 0;  ///< seconds since 1970
  Lock lock = Lock::unknown;
  std::optional<JobState> job = {};
};

/// Is the run running? Yes: it trains, or it has finished (exit code 0), and its newest loss is
/// finite. A run is stalled when no line comes for five times the usual interval, or for twice the
/// longest evaluation or checkpoint, if that is longer.
Verdict is_running(const RunState& run, const ProcessState& process);

/// Whether the run has ended for the follower: it has stopped or died, and its job, if any, has
/// ended or will not be requeued. `process` must be older than the last of the run's lines.
bool has_ended(const RunState& run, const ProcessState& process);

/// Are the GPUs busy? Yes: every GPU has a utilisation of 50 % or more; or the run uses none.
Verdict are_gpus_busy(const RunState& run);

/// Is there no error in the output that was read, and did the run not stop with one?
Verdict has_no_error(const RankOutput& output, const RunState& run);

/// Is the effective deck the requested one? `auto` (parallel.data, run.device) agrees with any
/// value. The first keys that differ are named.
Verdict is_deck_as_asked(const deck::Deck& effective, deck::Deck asked,
                         const std::string& asked_name);

/// A line for each rank that computes more than 20 % longer than the median rank of its stage.
std::vector<std::string> stragglers(const RunState& run);

/// A run and the answers about it.
struct Page {
  std::string folder;
  RunState run;
  double now = 0;
  bool ended = false;  ///< see has_ended()
  /// Is it running, are the GPUs busy, is there no error, is the deck as requested?
  std::array<Verdict, 4> verdicts;
  std::vector<std::string> notes;  ///< stragglers, lines that could not be read

  /// Whether none of the answers is bad.
  bool well() const;
};

/// The page as text: progress, values, GPUs, answers, notes; "-" for unknown values. Lines end in
/// newlines. `colour` colours the answers.
std::string to_text(const Page& page, bool colour);

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
