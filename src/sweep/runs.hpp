// What this machine can run; and from a deck with a sweep section to runs that can start, with
// their commands: all of them checked and planned, or one error with everything that is wrong.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  /// The runs will start: datasets must be there, and folders hold nothing of other runs.
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
/// once with the runs that have it; IoError when the deck cannot be read. Writes nothing.
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

}  // namespace trireme::sweep
