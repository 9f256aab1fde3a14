// How the ranks of a run are launched: what they find when they start, what they print, and
// starting them again.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/system/launcher.hpp"
#include "deck/choices.hpp"

namespace trireme::train {

// What ranks find when they start: what is wrong with it, and the command that starts them again.
// Pure: startup.hpp gathers what all ranks find. Each problem is that of one rank, whose name
// and host stand before it: "" when all is well, else what is wrong and how to mend it.

/// The program that a rank runs.
struct ProgramInfo {
  std::string host;
  std::string path;
  std::string build;  ///< build_id()
};

/// Complains when `mine` is another build than `first`, which rank 0 runs.
std::string build_problem(const ProgramInfo& first, const ProgramInfo& mine);

/// The deck that a rank was started with.
struct DeckInfo {
  std::string path;
  std::optional<std::string> text;  ///< of the file; unset where it cannot be read
  std::string overrides;            ///< a line for each
};

/// Complains when `mine` differs from `first`, rank 0's, whose deck all use. A rank that cannot
/// read the file does not need it.
std::string deck_problem(const DeckInfo& first, const DeckInfo& mine);

/// The GPUs of a rank.
struct GpuInfo {
  int local_rank = 0;              ///< the rank's number on its node
  int local_ranks = 1;             ///< ranks on this node
  std::vector<std::string> names;  ///< of the GPUs that the rank sees
  std::string why_none;            ///< why it sees none
  /// CUDA_VISIBLE_DEVICES; unset where the environment has none.
  std::optional<std::string> visible;

  /// The name of the one it takes: that of its number on the node; "" when there is none.
  std::string taken() const;
};

/// Complains when there is no GPU for the rank.
std::string gpu_problem(const GpuInfo& mine);

/// Complains when a rank takes a GPU of another kind than rank 0, which takes a `first`.
std::string gpu_kind_problem(const std::string& first, const std::string& mine);

/// Complains when a GPU of this name and compute capability (10 * major + minor) has no tensor
/// cores for FP8, which precision.gemm = fp8 needs, or no GEMMs with a scale for each block.
std::string fp8_problem(const std::string& gpu, int capability, deck::Fp8Recipe recipe);

/// What decides whether NCCL talks to other nodes over InfiniBand.
struct NetworkInfo {
  std::vector<std::string> active_ports;  ///< of InfiniBand: "mlx5_0 port 1"
  bool has_verbs = false;                 ///< libibverbs can be loaded
  bool has_devices = false;               ///< /dev/infiniband/uverbs* can be opened
  std::optional<std::string> ib_disable;  ///< NCCL_IB_DISABLE
  std::optional<std::string> net;         ///< NCCL_NET, with which a person chooses
};

/// Reads the ports from `ports`, /sys/class/infiniband, and the devices from `devices`,
/// /dev/infiniband; tries the library and reads the environment.
NetworkInfo read_network_info(const std::filesystem::path& ports,
                              const std::filesystem::path& devices);

/// Complains when NCCL has to fall back to TCP sockets although a port is active, unless NCCL_NET
/// says which network is wanted.
std::string network_problem(const NetworkInfo& mine);

/// What tells how the ranks were started.
struct LaunchInfo {
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
LaunchInfo read_launch_info();

/// The launcher and its options, as words of a shell: "mpirun -n 4 --oversubscribe", "srun
/// --mpi=pmix -n 4", or "" for one rank that no launcher needs to start. `command` is the rank's
/// own command line, the program first.
///
/// Of an mpirun on this host they are the words that were typed, further hosts and parameters
/// included, else what mpirun leaves in the environment of its ranks. An mpirun of several
/// application contexts, `a : b`, is one of those that only the environment tells of.
std::string launch_words(const LaunchInfo& info, int ranks,
                         const std::vector<std::string>& command);

// ---- the files under <run>/ranks: what the ranks of each node print, and what hangs
// (write_stacks())

/// <run>/ranks/<host><suffix> for this host.
std::filesystem::path rank_file(const std::filesystem::path& run_folder, const std::string& suffix);

/// Makes <run>/ranks. Throws IoError.
void make_rank_folder(const std::filesystem::path& run_folder);

/// Removes the files that an earlier run left there. Throws IoError.
void remove_rank_files(const std::filesystem::path& run_folder);

/// From now until the process ends its standard output and error go to <run>/ranks/<host>.out and
/// .err, each line with "[rank N] " before it; the first is report::kOutputMarker and the time.
/// What went to standard error still does; standard output continues for rank 0 alone. A separate
/// process passes the lines on: it loses none when this one is killed. Throws IoError.
void keep_rank_output(const std::filesystem::path& run_folder, int rank);

/// That process's work, when the command line of this one says that it is it: then returns the exit
/// code. To be asked before anything else.
std::optional<int> relay_if_asked(int argc, char** argv);

// ---- starting a run again when it ends early (trireme-pretrain --supervise)

/// What supervise() starts.
struct SupervisedRun {
  std::vector<std::string> command;  ///< the launcher's words, the program and its arguments
  std::vector<std::string> again;    ///< the same for starts that resume, once one has begun
  std::filesystem::path folder;      ///< the run folder
  int max_restarts = 0;
  std::optional<double>
      time_limit;  ///< seconds of all starts together; in later ones --time-limit says what is left
  std::chrono::seconds launcher_timeout = LauncherWatch::kTimeout;  ///< after its ranks
};

/// The words of a command line that start the run that --supervise supervises: without the options
/// of --supervise, and with --restart only if `with_restart`.
std::vector<std::string> supervised_words(int argc, char** argv, bool with_restart);

/// Runs the command, and starts it again when it ends with 75 or is ended by a signal, as the run
/// of a lost rank is, or with 77 where the host with wrong results can be left out; without a host
/// that lost a rank in two starts where there are spare ones: after 1 second, then twice as long
/// each time, 60 seconds at most, from the beginning once it has progressed. Does not start it
/// again when the deck's or the command's limit of time stopped it, when it failed in the same way
/// at the same iteration twice, after `max_restarts`, or when this process was asked to stop: then
/// it asks the run to stop (SIGUSR1) and waits for it. Kills an mpirun that hangs after its ranks
/// have ended. Says on standard error what it does, and at the end the run's goodput. Returns the
/// run's last exit code; 1 instead of 75 where another start would not help. Throws IoError.
ExitCode supervise(const SupervisedRun& run);

}  // namespace trireme::train
