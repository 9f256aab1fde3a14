// The words with which the ranks of this run were started, for the command that continues it: they
// work where the run prints them.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme::train {

/// What tells how the ranks were started.
struct LaunchFacts {
  /// The command line of the process that started this rank, mpirun's where it is on this host.
  std::vector<std::string> parent;
  bool by_srun = false;                      ///< else by mpirun, where there are several ranks
  bool root = false;                         ///< mpirun refuses root unless it is told
  bool oversubscribes = false;               ///< mpirun may start more ranks than it has slots for
  std::optional<std::string> binding;        ///< mpirun --bind-to
  std::optional<std::string> mapping;        ///< mpirun --map-by
  std::optional<std::string> container;      ///< TRIREME_CONTAINER: srun's options, quoted
  std::optional<std::string> cpus_per_task;  ///< of srun, which forgets the job's
  std::optional<std::string> gpu_bind;       ///< of srun
};

/// Reads /proc and the environment.
LaunchFacts read_launch_facts();

/// The launcher and its options, as words of a shell: "mpirun -n 4 --oversubscribe", "srun
/// --mpi=pmix -n 4", or "" for one rank that no launcher needs to start. `command` is the rank's
/// own command line, the program first.
///
/// Of an mpirun on this host they are the words that were typed, further hosts and parameters
/// included, else what mpirun leaves in the environment of its ranks. An mpirun of several
/// application contexts, `a : b`, is one of those that only the environment tells of.
std::string launch_words(const LaunchFacts& facts, int ranks,
                         const std::vector<std::string>& command);

}  // namespace trireme::train
