// Following a run by its files while it is written: its state, the output of its ranks, and what
// 'trireme-report follow' concludes.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deck/deck.hpp"
#include "report/metrics.hpp"

namespace trireme::report {

// The state of a run by the lines of its metrics.jsonl.

/// A training line; missing values and those that are not numbers are absent.
struct TrainPoint {
  double time = 0;
  std::int64_t iteration = 0;
  std::int64_t since = 0;  ///< its means are of the iterations after this one
  std::optional<std::int64_t> samples, tokens, global_batch;
  std::optional<double> loss, grad_norm, learning_rate, ms, tokens_per_second, tflops, mfu;
};

/// A checkpoint or an evaluation of the validation split.
struct Milestone {
  std::int64_t iteration = 0;
  std::optional<double> loss;                   ///< of an evaluation
  std::optional<std::int64_t> samples, tokens;  ///< consumed, of an evaluation
};

/// The state of a run.
struct RunState {
  /// Of the newest start of the program; `starts` counts them.
  StartEvent start;
  double start_time = 0;
  int starts = 0;

  std::optional<TrainPoint> train;  ///< the newest, also of earlier starts
  std::int64_t reported = 0;        ///< TrainPoint::since of the next training line
  std::optional<double> best_loss;
  std::int64_t best_iteration = 0;
  std::int64_t skipped = 0, nan = 0;  ///< iterations
  std::optional<Milestone> evaluation, checkpoint;
  double memory = 0;  ///< bytes on the rank with the highest use: of its GPU, else peak resident
  std::vector<GpuUse> gpus;
  std::vector<double> rank_ms;  ///< TimersEvent::rank_ms

  // Since the newest start.
  std::int64_t steps = 0;               ///< iterations in training lines
  std::deque<double> intervals = {};    ///< seconds between training lines, the newest hundred
  double longest_pause = 0;             ///< seconds that an evaluation or a checkpoint took
  std::optional<WarningEvent> warning;  ///< the newest
  std::optional<StopEvent> stop;

  double last_time = 0;                      ///< of the newest line
  std::int64_t unreadable = 0;               ///< lines that are not JSON objects with a kind
  std::map<std::string, int> unknown_kinds;  ///< lines of kinds that this program does not know

  /// Takes the next line of metrics.jsonl; true for a training line.
  bool take(std::string_view line);

  /// The median of the seconds between training lines; of one line the time of its steps. Empty
  /// without a step.
  std::optional<double> typical_interval() const;
  /// The remaining seconds at the newest line's speed.
  std::optional<double> seconds_left() const;
};

// The output of ranks: reading files while they are written, and finding errors in them.

/// The complete lines of a file that grows, is truncated or is replaced while it is read.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  struct News {
    /// The file was replaced or truncated: lines returned before are obsolete.
    bool anew = false;
    std::vector<std::string> lines;  ///< without their newlines and returns
  };
  /// The lines since the last call; none when the file does not exist. Throws IoError when it
  /// cannot be read.
  News read();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t offset_ = 0;   ///< read so far
  std::string head_;   ///< the first bytes, by which a replaced file is recognised
  std::string begun_;  ///< an incomplete line
};

/// The beginning, after the rank, of the first line that a start of the program writes to a file of
/// <run>/ranks: earlier lines are from an earlier start.
inline constexpr std::string_view kOutputMarker = "--- output since ";

/// Whether a line of output is an error message: it has one of the words that MPI, NCCL, CUDA,
/// Slurm, the C++ runtime and this program use, and is no warning.
bool tells_of_error(std::string_view line);

/// The last `lines` lines of a run's console.log and of each file of its `ranks`, under the file's
/// name and number of lines; before them the line of console.log with hosts and GPUs, and the times
/// of the last `lines` training lines. Lines end in newlines. Throws IoError.
std::string last_lines(const std::filesystem::path& run, std::size_t lines);

/// Collects the errors in the output of ranks.
class RankOutput {
 public:
  /// Takes the next line of the file named `file`, which begins with its rank, "[rank 3] ". After
  /// the rank's marker its earlier lines in this file no longer count.
  void take(const std::string& file, std::string_view line);
  /// The file was replaced or truncated.
  void forget(const std::string& file) { files_.erase(file); }

  /// Whether no line counts.
  bool empty() const { return files_.empty(); }
  /// Error lines and warning lines of all ranks.
  std::int64_t errors() const;
  std::int64_t warnings() const;
  /// Files that were read.
  std::int64_t files() const { return static_cast<std::int64_t>(files_.size()); }
  /// The first error line, after its file; "" when there is none.
  std::string first_error() const;

 private:
  struct Said {
    std::int64_t errors = 0, warnings = 0;
    std::string first_error;
  };
  std::map<std::string, std::map<std::string, Said>> files_;  ///< by file, then by rank
};

// What 'trireme-report follow' shows of a run (the answers to four questions, and the page), and
// how it finds and reads the run: by the files in its folder and, where it is a job, by Slurm.

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
