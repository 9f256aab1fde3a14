// A sweep: its runs, their state, and how they are started.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "deck/sweep/sweep.hpp"
#include "plan/run_plan.hpp"

namespace trireme::sweep {

// What this machine can run, which part of it each run gets, and the processes of the runs.

/// The GPUs, cores and memory that this process may use.
struct Machine {
  std::vector<std::string> gpus;  ///< as CUDA_VISIBLE_DEVICES names them
  std::size_t gpu_bytes = 0;      ///< memory of the smallest
  int cores = 1;
  std::size_t host_bytes = 0;
};

/// The resources of this machine.
Machine this_machine();

/// What the ranks of a run need.
struct Need {
  int ranks = 1;
  std::size_t bytes = 0;  ///< planned peak of the rank with the highest
  bool on_gpus = false;
};

/// Why a run does not fit on this machine; nothing when it does. Each rank needs its own GPU or
/// core, unless `max_ranks` allows more (or fewer).
std::optional<std::string> why_unfit(const Machine& machine, const Need& need,
                                     std::optional<int> max_ranks);

/// Assigns GPUs to concurrent runs, each GPU to one at a time.
class GpuPool {
 public:
  explicit GpuPool(std::vector<std::string> gpus) : free_(std::move(gpus)) {}

  /// `count` free GPUs; nothing while fewer are free.
  std::optional<std::vector<std::string>> take(int count);
  void give_back(const std::vector<std::string>& gpus);

 private:
  std::vector<std::string> free_;
};

/// What to start, and where its output goes.
struct Command {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;  ///< in addition to this process's
  std::filesystem::path output;  ///< standard output and error are appended to it
};

/// A child process in its own process group, so that a terminal's Ctrl-C reaches this program
/// alone. When this program dies, even of SIGKILL, the child gets SIGTERM.
class Process {
 public:
  /// Starts the command. Throws IoError when the output cannot be opened or no process be made; a
  /// program that is not found ends with code 127.
  explicit Process(const Command& command);

  /// Sends a signal, to the process alone.
  void signal(int number) const;

  /// The exit code once it has ended: 128 + the signal's number when one killed it.
  std::optional<int> ended();

 private:
  pid_t pid_ = -1;
};

// From a deck with a sweep section to runs that can start, with their commands: all of them checked
// and planned, or one error with everything that is wrong.

/// What to check, and against what.
struct CheckOptions {
  /// The runs will start: datasets and checkpoint.load must be there, the latter of the same model,
  /// and folders hold nothing of other runs.
  bool to_run = true;
  std::optional<Machine> machine;  ///< that the runs must fit; nothing when another runs them
  std::optional<int> max_ranks;    ///< see why_unfit()
  /// The memory that a run of a deck finds where it will start: a run that does not fit is an
  /// error. Empty: not known.
  std::function<std::optional<plan::AvailableMemory>(const deck::Deck&)> memory = {};
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
/// once with the runs that have it; IoError when the deck cannot be read; what options.memory
/// throws. Writes nothing.
PlannedSweep plan_sweep(const std::filesystem::path& deck_path,
                        const std::vector<std::string>& overrides, const CheckOptions& options);

/// What starts the ranks on this machine. Runs share its cores, so no rank is bound to one.
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
  bool quiet = false;             ///< of runs that start and finish nothing is printed
};

/// Throws DeckError when a run of several ranks has a launcher that is not told how many.
void check_launch(const PlannedSweep& sweep, const Launch& launch);

/// Where the copy of the deck is that the runs read: editing the deck does not change them.
std::filesystem::path deck_copy(const PlannedSweep& sweep);

/// Launcher, program, deck, the overrides that make it the run's.
std::vector<std::string> run_words(const PlannedSweep& sweep, const PlannedRun& run,
                                   const Launch& launch);

/// Words as a shell cuts a line, without their quotes.
std::vector<std::string> words_of(std::string_view line);

/// The words as a shell reads them, quoted where they must be.
std::string shell_line(const std::vector<std::string>& words);

// The state of each run of a sweep and its figures, read from what the run and its launcher wrote,
// so that a sweep may be killed at any moment; and both as tables.

/// A run in figures; those that its metrics do not give are absent.
struct Figures {
  bool started = false;              ///< there is a start event
  std::optional<int> exit_code;      ///< of the stop event, unless the run was started again since
  bool finished = false;             ///< by the reason of that event
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
/// seed or data than the run's deck, from which the trainer would refuse to resume, or with other
/// keys at the end of the run, where nothing would be trained with the new ones.
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
/// DataError with the line when a row has another number of cells, or a name that no run or an
/// earlier row has, or when a column has the name of another one.
ExtraColumns read_extra_columns(const std::string& text, const std::string& source,
                                const PlannedSweep& sweep);

/// A row for each run: name, state, the keys that the sweep sets, losses, median milliseconds per
/// iteration, throughput, MFU, peak memory of the rank with the highest as used and as planned;
/// then the columns of `extra`.
std::string table(const PlannedSweep& sweep, const std::vector<Status>& statuses,
                  TableFormat format, const ExtraColumns& extra = {});

// Starts the runs of a sweep: on this machine, or as Slurm arrays, one array for the runs of each
// number of ranks.
//
// Under Slurm the sweep's own folder gets `runs.txt`, whose n-th line is the name and the command
// of run n, and `job.sbatch`, which runs the line of its array task. Slurm's queue is queried by
// the job's name, which follows from the sweep's folder: submitted jobs are recorded nowhere else.

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
