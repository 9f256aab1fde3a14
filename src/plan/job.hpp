// The job that starts a run: ranks, nodes, GPUs and time, all from the deck. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace trireme::plan {

/// What starts the ranks.
enum class Launcher { slurm, mpirun };

/// What the user says about the machine; the deck has the rest.
struct JobRequest {
  Launcher launcher{};
  std::int64_t gpus_per_node = 0;  ///< 0: the ranks compute on the host
  std::string gpu;                 ///< Slurm's name of the GPUs' type; "" for any
  std::optional<std::int64_t> nodes;
  std::vector<deck::NodeKind> kinds;  ///< of a heterogeneous job; overrides the three above
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> cpus_per_rank;
  std::optional<std::string> image;      ///< an enroot image, absolute
  std::optional<std::string> partition;  ///< of Slurm
  std::optional<std::string> account;    ///< of Slurm
  std::vector<std::string> options;      ///< further ones of sbatch, such as "--exclusive"
  std::optional<std::string> modules;    ///< to load, separated by spaces
  std::optional<double> seconds;         ///< the time limit
  std::string folder;                    ///< where the job runs, absolute
  std::string program;                   ///< trireme-pretrain, absolute
  std::string deck;                      ///< its file
  std::vector<std::string> overrides;
};

/// Nodes that are alike, with their ranks: the only component of a job, or one of a heterogeneous
/// job, whose first component has the first ranks.
struct JobComponent {
  std::int64_t nodes = 1;
  std::int64_t ranks_per_node = 1;
  std::string gpu;  ///< see JobRequest
};

/// A job, ready to be written down.
struct Job {
  JobRequest request;
  std::string name;        ///< only characters that schedulers accept
  std::string about;       ///< its layout, in a line
  std::string run_folder;  ///< run.output
  std::vector<JobComponent> components;
  double seconds = 0;
  std::string why_seconds;  ///< in a line
  std::string memory;       ///< what is known of it, in a line; "" leaves it out
};

/// The nodes of `ranks` ranks on nodes of one `kind`: as few as can have equally many ranks and on
/// which tensor ranks stay together where that is possible. Throws UsageError if `kind.nodes` do
/// not hold them.
JobComponent place(std::int64_t ranks, std::int64_t tensor, const deck::NodeKind& kind);

/// The ranks that the job starts: the requested number; where parallel.data is `auto`, as many as
/// the GPUs of the nodes take; else those of the layout. Throws UsageError when the GPUs cannot
/// hold one copy of the model.
std::int64_t ranks_for(const deck::Deck& deck, const JobRequest& request);

/// Lays the ranks of `deck`, whose parallel.data is resolved, on nodes: as few as can have equally
/// many, and on which tensor ranks stay together where that is possible; or the requested number.
/// The time is the requested one, or train.exit_duration and what a checkpoint takes, or follows
/// from the FLOPs of the run, `flops_per_token` each: up to a day, after which a job is requeued.
/// mpirun's job is limited only by a requested time. Several kinds of nodes have a rank on each of
/// their GPUs. Throws UsageError when the ranks do not fit on the nodes.
Job make_job(const deck::Deck& deck, const JobRequest& request, double flops_per_token);

/// The job as a script for its launcher; it refuses with one line when something is missing, and
/// ends with the program's exit code. Slurm signals the ranks in time for a checkpoint, and puts a
/// job that ended with 75, or was killed after a checkpoint, back into the queue.
std::string to_script(const Job& job);

/// The value of --gpus-per-node: "4" or "a10:4".
std::string gpus_option(const JobComponent& component);

/// srun's options that start the ranks in `image`, with `folder` mounted: words of bash, one an
/// option.
std::vector<std::string> container_options(const std::string& image, const std::string& folder);

/// Lines that load `modules` (words separated by spaces), in a script that has `refuse MESSAGE`.
std::string module_lines(const std::string& modules);

/// Lines that select the ring for the fences of Slurm's PMIx (SLURM_PMIX_FENCE), and say why.
std::string pmix_fence_lines();

/// Lines that define `newest_checkpoint` and keep what it prints before the run in `before`;
/// `run_folder` is a word of bash.
std::string note_checkpoint_lines(const std::string& run_folder);

/// Lines that make `code`, the exit code, 75 where a signal ended a rank and this start of the run
/// has written a checkpoint: started again the run gets further, so that a job is not queued twice
/// for the same iteration. The signals are those that a fault or the kernel sends: SIGABRT (134),
/// SIGBUS (135), SIGKILL (137, memory among its reasons) and SIGSEGV (139).
std::string killed_rank_lines();

}  // namespace trireme::plan
