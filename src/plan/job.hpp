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

/// What a person says of the machine; the deck says the rest.
struct JobRequest {
  Launcher launcher{};
  std::int64_t gpus_per_node = 0;  ///< 0: the ranks compute on the host
  std::optional<std::int64_t> nodes;
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> cpus_per_rank;
  std::optional<std::string> image;      ///< an enroot image, absolute
  std::optional<std::string> partition;  ///< of Slurm
  std::optional<double> seconds;         ///< the time limit
  std::string folder;                    ///< where the job runs, absolute
  std::string program;                   ///< trireme-pretrain, absolute
  std::string deck;                      ///< its file
  std::vector<std::string> overrides;
};

/// A job, ready to be written down.
struct Job {
  JobRequest request;
  std::string name;        ///< without characters that schedulers mind
  std::string about;       ///< its layout, in a line
  std::string run_folder;  ///< run.output
  std::int64_t nodes = 1;
  std::int64_t ranks_per_node = 1;
  double seconds = 0;
  std::string why_seconds;  ///< in a line
  std::string memory;       ///< what is known of it, in a line; "" leaves it out
};

/// The ranks that the job starts: as many as asked for; where parallel.data is `auto`, as many as
/// the GPUs of the nodes take; else those of the layout. Throws UsageError when the GPUs cannot
/// hold one copy of the model.
std::int64_t ranks_for(const deck::Deck& deck, const JobRequest& request);

/// Lays the ranks of `deck`, whose parallel.data is resolved, on nodes: as few as can have equally
/// many, and on which tensor ranks stay together where that is possible; or as many as asked for.
/// The time is the one asked for, or train.exit_duration and what a checkpoint takes, or follows
/// from the FLOPs of the run, `flops_per_token` each: up to a day, after which a job is requeued.
/// mpirun's job is limited by a time that was asked for alone. Throws UsageError when the ranks do
/// not fit on the nodes.
Job make_job(const deck::Deck& deck, const JobRequest& request, double flops_per_token);

/// The job as a script for its launcher; it refuses with one line when something is missing, and
/// ends with the program's exit code. Slurm signals the ranks in time for a checkpoint, and puts a
/// job that ended with 75, or was killed after a checkpoint (requeue.hpp), back into the queue.
std::string to_script(const Job& job);

}  // namespace trireme::plan
